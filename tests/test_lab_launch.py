"""Launched ranks: their environment, their output, and every way in which one can fail."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest

from lab_permission import OBSTACLE
from thinwire.errors import ConfigError, RankError
from thinwire.lab import Lab, Layout, Loopback, Network, launch
from thinwire.lab.lines import MAX_LINE_BYTES

# A bare interpreter starts in 10 ms.
PYTHON = [sys.executable, "-I", "-S", "-c"]


@pytest.fixture(params=["loopback", pytest.param("lab", marks=pytest.mark.lab)])
def network(request: pytest.FixtureRequest) -> Iterator[Network]:
    """Two hosts of two ranks, over loopback and in the lab."""
    layout = Layout(hosts=2, ranks_per_host=2)
    if request.param == "lab" and OBSTACLE is not None:
        pytest.skip(f"no lab here: {OBSTACLE}")
    with Lab(layout) if request.param == "lab" else Loopback(layout) as opened:
        yield opened


@pytest.fixture
def pair() -> Network:
    """One host of two ranks over loopback, for what does not depend on the network."""
    return Loopback(Layout(hosts=1, ranks_per_host=2))


def output(network: Network, code: str, **options: object) -> dict[int, list[str]]:
    lines: dict[int, list[str]] = defaultdict(list)
    launch(
        network,
        [*PYTHON, code],
        on_line=lambda rank, line: lines[rank].append(line),
        timeout_s=30,
        **options,  # type: ignore[arg-type]
    )
    return dict(lines)


def failure(network: Network, code: str, timeout_s: float = 30) -> str:
    with pytest.raises(RankError) as caught:
        launch(network, [*PYTHON, code], timeout_s=timeout_s)
    return str(caught.value)


def on_rank(rank: int, deed: str, otherwise: str = "time.sleep(60)") -> str:
    """Return a program that does one thing on one rank and another on the others."""
    return (
        "import os, signal, sys, time\n"
        f"if os.environ['RANK'] == '{rank}':\n    {deed}\nelse:\n    {otherwise}\n"
    )


def test_ranks_have_the_environment_of_torchrun(network: Network) -> None:
    lines = output(network, "import json, os; print(json.dumps(dict(os.environ)))")
    environments = {rank: json.loads(text) for rank, (text,) in lines.items()}
    assert sorted(environments) == [0, 1, 2, 3]
    for rank, environment in environments.items():
        expected = {
            "RANK": rank,
            "WORLD_SIZE": 4,
            "LOCAL_RANK": rank % 2,
            "LOCAL_WORLD_SIZE": 2,
            "GROUP_RANK": rank // 2,
            "GROUP_WORLD_SIZE": 2,
            "MASTER_ADDR": network.address(0),
            "MASTER_PORT": environments[0]["MASTER_PORT"],
            "GLOO_SOCKET_IFNAME": network.interface,
            "OMP_NUM_THREADS": 1,
        }
        assert {name: environment[name] for name in expected} == {
            name: str(value) for name, value in expected.items()
        }


def test_added_variables_reach_the_ranks_but_do_not_move_them(pair: Network) -> None:
    code = "import os; print(os.environ['MINE'], os.environ['OMP_NUM_THREADS'], os.environ['RANK'])"
    lines = output(pair, code, environment={"MINE": "x", "OMP_NUM_THREADS": "3", "RANK": "9"})
    assert lines == {0: ["x 3 0"], 1: ["x 3 1"]}


def test_an_outer_torchrun_is_not_inherited(pair: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    # With it, rank 0 would wait for a store that the agent of the outer one serves elsewhere.
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    code = "import os; print([name for name in os.environ if 'ELASTIC' in name])"
    assert output(pair, code) == {0: ["[]"], 1: ["[]"]}


def test_ranks_of_a_host_share_its_network(network: Network) -> None:
    lines = output(network, "import os; print(os.readlink('/proc/self/ns/net'))")
    found = [lines[rank][0] for rank in range(4)]
    assert found[0] == found[1]
    assert found[2] == found[3]
    assert (found[0] != found[2]) == isinstance(network, Lab)


def test_ranks_meet_at_the_master_port(network: Network) -> None:
    meet = """
import os, socket, time
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if os.environ["RANK"] == "0":
    with socket.create_server(address) as server:
        for _ in range(3):
            server.accept()[0].sendall(b"met")
else:
    while True:
        try:
            print(socket.create_connection(address, 5).recv(3))
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
"""
    # Twice, since recipes are run one after the other on one network.
    for _ in range(2):
        assert output(network, meet) == {rank: ["b'met'"] for rank in (1, 2, 3)}


def test_arguments_are_not_read_by_a_shell(pair: Network) -> None:
    code, wild = "import sys; print(sys.argv[1:])", "$(id); `id` *\n'\""
    lines = []
    launch(pair, [*PYTHON, code, wild, ""], on_line=lambda rank, line: lines.append(line))
    assert lines == [repr([wild, ""])] * 2


def test_ranks_inherit_no_descriptors(network: Network) -> None:
    # A rank that kept a namespace's descriptor would keep the namespace.
    lines = output(network, "import os; print(os.listdir('/proc/self/fd'))")
    for (text,) in lines.values():
        # Standard input, output, error, and the listing itself.
        assert text == "['0', '1', '2', '3']"


def test_standard_error_is_heard_too(pair: Network) -> None:
    heard: list[tuple[int, str]] = []
    launch(
        pair,
        [*PYTHON, "import sys; sys.stderr.write('warning')"],
        on_error_line=lambda rank, line: heard.append((rank, line)),
    )
    assert sorted(heard) == [(0, "warning"), (1, "warning")]


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("os.write(1, b'\\xff\\x00\\xfe\\n\\x80')", ["\ufffd\0\ufffd", "\ufffd"]),
        ("os.write(1, b'one\\r\\n\\nno end')", ["one", "", "no end"]),
        ("os.write(1, 'größe\\n'.encode())", ["größe"]),
        ("pass", []),
    ],
)
def test_any_output_is_taken(pair: Network, code: str, lines: list[str]) -> None:
    assert output(pair, f"import os\n{code}").get(0, []) == lines


def test_a_huge_line_is_cut(pair: Network) -> None:
    lines = output(pair, "print('x' * 5_000_000); print('after')")
    for huge, after in lines.values():
        assert len(huge) < MAX_LINE_BYTES + 100
        assert huge.endswith(f"[... {5_000_000 - MAX_LINE_BYTES} bytes more]")
        assert after == "after"


def test_megabytes_of_binary_noise_do_no_harm(pair: Network) -> None:
    code = "import os\nfor _ in range(200): os.write(1, os.urandom(1 << 14))\nprint('\\nend')"
    lines = output(pair, code)
    assert lines[0][-1] == "end"


def test_lines_arrive_while_the_rank_runs(pair: Network) -> None:
    start_s = time.monotonic()
    seen_s: list[float] = []
    code = "import time; print('now', flush=True); time.sleep(0.7)"
    launch(pair, [*PYTHON, code], on_line=lambda *_: seen_s.append(time.monotonic() - start_s))
    assert len(seen_s) == 2
    assert max(seen_s) < 0.6


def test_an_exit_code_is_reported_and_the_others_end(network: Network) -> None:
    start_s = time.monotonic()
    code = on_rank(2, "sys.stderr.write('thinwire: error: no such text\\n'); sys.exit(3)")
    assert failure(network, code) == "rank 2 (host 1) failed with exit code 3: no such text"
    # The others would have slept for a minute.
    assert time.monotonic() - start_s < 10


def test_a_killed_rank_is_reported(network: Network) -> None:
    message = failure(network, on_rank(1, "os.kill(os.getpid(), signal.SIGKILL)"))
    assert message.startswith("rank 1 (host 0) was killed by SIGKILL (out of memory?")


def test_an_exception_is_reported_with_its_traceback_as_a_note(pair: Network) -> None:
    with pytest.raises(
        RankError, match=r"rank 1 \(host 0\).*exit code 1: ValueError: boom"
    ) as caught:
        launch(pair, [*PYTHON, on_rank(1, "raise ValueError('boom')")])
    assert "Traceback" in caught.value.__notes__[0]


def test_a_hanging_rank_is_named_at_the_timeout(network: Network) -> None:
    message = failure(network, on_rank(3, "time.sleep(60)", "pass"), timeout_s=1)
    assert message == "after 1 s rank 3 still ran"


def test_all_hanging_ranks_are_named(pair: Network) -> None:
    assert failure(pair, "import time; time.sleep(60)", 0.5) == "after 0.5 s ranks 0, 1 still ran"


def test_a_rank_that_ignores_sigterm_ends_too(pair: Network) -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    start_s = time.monotonic()
    failure(pair, code, 0.5)
    assert time.monotonic() - start_s < 5


def test_a_stopped_rank_ends_too(pair: Network) -> None:
    # SIGTERM waits while a process is stopped; SIGKILL does not.
    code = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
    assert failure(pair, code, 0.5) == "after 0.5 s ranks 0, 1 still ran"


def test_the_culprit_is_named_although_a_victim_ended_first(pair: Network) -> None:
    lost = "sys.exit('ConnectionResetError: Connection reset by peer')"
    code = on_rank(1, "time.sleep(0.5); sys.exit('ValueError: boom')", lost)
    assert failure(pair, code).endswith("exit code 1: ValueError: boom")


def test_a_program_that_does_not_exist_is_named(pair: Network) -> None:
    with pytest.raises(RankError, match=r"'no-such-program' cannot be started: No such file"):
        launch(pair, ["no-such-program"])


def test_no_program_and_no_time_are_refused(pair: Network) -> None:
    with pytest.raises(ConfigError, match="no program"):
        launch(pair, [])
    with pytest.raises(ConfigError, match="more than 0"):
        launch(pair, ["true"], timeout_s=0)


@pytest.mark.parametrize("error", [KeyboardInterrupt, BrokenPipeError])
def test_what_a_callback_raises_ends_the_ranks(pair: Network, error: type[BaseException]) -> None:
    pids: list[int] = []

    def take(rank: int, line: str) -> None:
        pids.append(int(line))
        raise error

    # A rank writes once more when it is ended; the callback is not asked again.
    code = """
import os, signal, time

def end(*_):
    os.write(1, f"{os.getpid()}\\n".encode())
    os._exit(0)

signal.signal(signal.SIGTERM, end)
print(os.getpid(), flush=True)
time.sleep(60)
"""
    with pytest.raises(error):
        launch(pair, [*PYTHON, code], on_line=take)
    assert len(pids) == 1
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_what_ranks_started_ends_with_them(pair: Network) -> None:
    # Left running by a rank that itself ends well.
    code = (
        "import subprocess; child = subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL);"
        "print(child.pid)"
    )
    lines = output(pair, code)
    assert eventually(lambda: not any(alive(int(pid)) for (pid,) in lines.values()))


def alive(pid: int) -> bool:
    """Whether the process runs: an orphan's zombie may wait for init a while."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def eventually(condition: Callable[[], bool]) -> bool:
    """Whether the condition holds within five seconds."""
    deadline_s = time.monotonic() + 5
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    return True


def test_output_left_open_by_a_daemon_does_not_delay(pair: Network) -> None:
    # It leaves the rank's session and keeps its standard output; the launch does not wait for it.
    code = "import subprocess; subprocess.Popen(['sleep', '3'], start_new_session=True); print('x')"
    start_s = time.monotonic()
    assert output(pair, code) == {0: ["x"], 1: ["x"]}
    assert time.monotonic() - start_s < 2
