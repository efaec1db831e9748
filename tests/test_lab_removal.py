"""Nothing is left of a lab or of its ranks, however the program that made them ends.

A program with running ranks, each with a child, is ended in every way. Its processes carry a mark
in their environment, by which survivors are found. That the kernel has removed a namespace is seen
from outside by a veth pair whose one end was put into it: the other end vanishes with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab_permission import NEEDS_LAB
from thinwire.lab.iproute import run_batch
from thinwire.lab.namespace import Namespace

VICTIM = Path(__file__).with_name("lab_victim.py")
MARK = "THINWIRE_TEST_MARK"

# Ranks get two seconds of grace while the program still runs; killed, it takes them along.
PROMPT_S = 4.0

# How the program ends, what is done to it, and the exit status that its caller sees: what Python
# makes of an exception, and of Ctrl-C and SIGTERM where no handler is installed.
ENDINGS = [
    pytest.param("return", None, 0, id="return"),
    pytest.param("raise", None, 1, id="exception"),
    pytest.param("wait", signal.SIGINT, -signal.SIGINT, id="ctrl-c"),
    pytest.param("wait", signal.SIGTERM, -signal.SIGTERM, id="sigterm"),
    pytest.param("wait", signal.SIGKILL, -signal.SIGKILL, id="sigkill"),
]


class Victim:
    """The running program."""

    def __init__(self, network: str, ending: str) -> None:
        self.mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", str(VICTIM), network, ending],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, MARK: self.mark},
        )
        assert self.process.stdout is not None
        self.namespace_path = self.process.stdout.readline().strip()
        """Of a host; `-` over loopback."""

    def end(self, number: signal.Signals | None) -> tuple[int, str]:
        """End it, by a signal or by letting it go on; return the exit status and what it said."""
        if number is not None:
            self.process.send_signal(number)
        _, stderr = self.process.communicate("go on\n", timeout=PROMPT_S)
        return self.process.returncode, stderr

    def survivors(self) -> dict[int, str]:
        """Return the processes that carry the mark: their numbers and command lines."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self.mark.encode() in (folder / "environ").read_bytes():
                    command = (folder / "cmdline").read_bytes()
                    found[int(folder.name)] = command.replace(b"\0", b" ").decode()
        return found


@contextlib.contextmanager
def victim(network: str, ending: str) -> Iterator[Victim]:
    running = Victim(network, ending)
    try:
        yield running
    finally:
        # What a failed test has left; after a good one there is nothing.
        for pid in running.survivors():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        running.process.communicate()


def eventually(condition: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + PROMPT_S
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    return True


def named_namespaces() -> str:
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout


@pytest.mark.parametrize(("ending", "number", "status"), ENDINGS)
def test_no_process_is_left(ending: str, number: signal.Signals | None, status: int) -> None:
    with victim("loopback", ending) as program:
        # The program, its guard, four ranks and their four children.
        assert eventually(lambda: len(program.survivors()) == 10), program.survivors()
        seen_status, stderr = program.end(number)
        assert eventually(lambda: not program.survivors()), program.survivors()
    assert seen_status == status, stderr
    # Nothing but what Python itself says about the end.
    assert "Warning" not in stderr
    assert ("Traceback" in stderr) == (status == 1 or number == signal.SIGINT)


class TestLab:
    pytestmark = NEEDS_LAB

    @pytest.mark.parametrize(("ending", "number", "status"), ENDINGS)
    def test_no_namespace_is_left(
        self, ending: str, number: signal.Signals | None, status: int
    ) -> None:
        names_before = named_namespaces()
        with Namespace() as outside, victim("lab", ending) as program:
            pair = f"link add probe type veth peer name probe netns {program.namespace_path}"
            run_batch(outside, "ip", [pair])
            assert self.has_probe(outside)
            seen_status, stderr = program.end(number)
            assert eventually(lambda: not program.survivors()), program.survivors()
            assert eventually(lambda: not self.has_probe(outside))
        assert seen_status == status, stderr
        assert named_namespaces() == names_before

    def has_probe(self, namespace: Namespace) -> bool:
        table = namespace.run(lambda: Path("/proc/thread-self/net/dev").read_text("ascii"))
        return "probe:" in table

    def test_the_probe_stays_while_the_lab_does(self) -> None:
        # The proof that the test above can fail.
        with Namespace() as outside, victim("lab", "wait") as program:
            pair = f"link add probe type veth peer name probe netns {program.namespace_path}"
            run_batch(outside, "ip", [pair])
            time.sleep(0.5)
            assert self.has_probe(outside)


def kill_guard(program: Victim) -> None:
    (guard,) = [pid for pid, command in program.survivors().items() if "guard.py" in command]
    os.kill(guard, signal.SIGKILL)


def test_a_proper_end_needs_no_guard() -> None:
    with victim("loopback", "return") as program:
        kill_guard(program)
        status, stderr = program.end(None)
        assert status == 0, stderr
        assert eventually(lambda: not program.survivors())


def test_ranks_die_with_their_launcher_even_without_the_guard() -> None:
    with victim("loopback", "wait") as program:
        kill_guard(program)
        program.end(signal.SIGKILL)
        assert eventually(lambda: set(program.survivors().values()) == {"sleep 600 "})
