"""``thinwire compare`` as people and programs meet it: output, mistakes, and sudden ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab_permission import NEEDS_LAB
from thinwire.cli import main

MARK = "THINWIRE_TEST_MARK"
QUICK = ["--model", "gpt:1x32x2", "--seq", "32", "--micro-batch", "1", "--steps", "3"]

# Ranks get two seconds of grace at the end, and the machine may be busy.
PROMPT_S = 20.0


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text"
    path.write_bytes(b"row, row, row your boat, gently down the stream. " * 400)
    return str(path)


def test_people_get_a_table_words_and_a_page(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "out" / "page.html"
    # one recipe: tables of several are in test_cli_comparison_view
    recipe = "zeropp:grads=int8/128"
    arguments = ["--recipes", recipe, "--data", text, "--html", str(page), *QUICK]
    assert main(["compare", *arguments]) == 0
    told = capsys.readouterr()
    for said in ("bits / parameter", "held-out loss", "zeropp:grads", "Without a shaped link"):
        assert said in told.out
    assert f"{recipe}: 3 steps" in told.err
    assert "</html>" in page.read_text()
    assert str(page) in told.out


def test_a_page_is_not_written_over_what_is_trained_on(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = Path(text).read_bytes()
    assert main(["compare", "--data", text, "--html", text, *QUICK]) == 2
    assert "would be overwritten" in capsys.readouterr().err
    assert Path(text).read_bytes() == before


def test_programs_get_one_document_and_nothing_else(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--recipes", "zeropp", "--data", text, "--json", "--ranks", "2", *QUICK]
    assert main(["compare", *arguments]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["world"], document["hosts"], document["link"]) == (4, 2, None)
    (run,) = document["runs"]
    assert run["recipe"] == "zeropp"
    assert run["sent_bytes_per_rank"] > run["across_bytes_per_rank"] > 0
    assert run["predicted_step_s"] is None or run["predicted_step_s"] > 0


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--recipes", "zero4"], 2, "unknown recipe 'zero4'"),
        (["--recipes", ""], 2, "no recipe given"),
        (["--recipes", "zero3,zero3"], 2, "twice"),
        (["--recipes", "zeropp:grads=int9/128"], 2, "int9"),
        (["--recipes", "zeropp:nonsense=1"], 2, "unknown recipe field 'nonsense'"),
        (["--recipes", "zeropp,compute=fp32"], 2, "unknown recipe 'compute=fp32'"),
        (["--recipes", "/no/such/recipe.toml"], 2, "cannot be read"),
        (["--recipes", "ddp:accumulate=within"], 2, "accumulate=within"),
        (["--model", "nonsense"], 2, "gpt:LAYERSxHIDDENxHEADS"),
        (["--model", "/no/such/config.json"], 2, "cannot be read"),
        (["--model", "gpt:96x12288x96"], 2, "GB more than"),
        (["--data", "/no/such/text"], 1, "cannot be read"),
        (["--data", "/proc/self/exe"], 1, "binary"),
        (["--data", "/proc/self/mem"], 1, "cannot be read"),
        (["--data", "/dev/null"], 1, "not a file"),
        (["--hosts", "0"], 2, "--hosts"),
        (["--hosts", "-1"], 2, "--hosts"),
        (["--hosts", "5000"], 2, "5000"),
        (["--ranks", "0"], 2, "--ranks"),
        (["--steps", "0"], 2, "--steps"),
        (["--seq", "0"], 2, "--seq"),
        (["--seq", "100000000"], 1, "too short"),
        (["--micro-batch", "0"], 2, "--micro-batch"),
        (["--seed", "-1"], 2, "--seed"),
        (["--learning-rate", "0"], 2, "learning_rate"),
        (["--learning-rate", "nan"], 2, "learning_rate"),
        (["--link", "0"], 2, "bandwidth '0'"),
        (["--link", "0mbit"], 2, "more than zero"),
        (["--link", "-5mbit"], 2, "bandwidth"),
        (["--link", "5"], 2, "unit"),
        (["--also-unshaped"], 2, "give --link"),
        (["--device", "tpu"], 2, "device"),
        (["--html", "/proc/page.html"], 2, "cannot be written"),
        (["--html", "/"], 2, "cannot be written"),
    ],
)
def test_a_mistake_is_one_sentence_with_the_right_code(
    arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # the last one given wins: a quick training, were a mistake not noticed
    assert main(["compare", *QUICK, *arguments]) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert said in told.err
    assert told.err.startswith("thinwire: error: ")
    assert told.err.count("\n") == 1


class Running:
    """A comparison in a process of its own; its processes carry a mark in their environment."""

    def __init__(self, text: str, *arguments: str) -> None:
        self.mark = uuid.uuid4().hex
        quick_but_long = [*QUICK, "--steps", "100000", "--data", text]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "thinwire", "compare", *quick_but_long, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, MARK: self.mark},
        )

    def survivors(self) -> dict[int, str]:
        """The processes that carry the mark: their numbers and command lines."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self.mark.encode() in (folder / "environ").read_bytes():
                    command = (folder / "cmdline").read_bytes()
                    found[int(folder.name)] = command.replace(b"\0", b" ").decode()
        return found

    def wait_for_ranks(self, number: int) -> list[int]:
        """Wait until so many ranks have joined and train; return their process numbers."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            ranks = [pid for pid, command in self.survivors().items() if "train.worker" in command]
            if len(ranks) == number and all(_has_joined(pid) for pid in ranks):
                return sorted(ranks)
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.1)
        pytest.fail("the ranks did not start")

    def end(self) -> tuple[int, str, str]:
        """Wait for its end: the exit code, and what it said."""
        out, err = self.process.communicate(timeout=PROMPT_S)
        return self.process.returncode, out, err


def _has_joined(pid: int) -> bool:
    """A rank holds connected sockets when it has met the others."""
    with contextlib.suppress(OSError):
        links = (os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir())
        return sum(link.startswith("socket:") for link in links) >= 3
    return False


@contextlib.contextmanager
def running(text: str, *arguments: str) -> Iterator[Running]:
    comparison = Running(text, *arguments)
    try:
        yield comparison
    finally:
        for pid in comparison.survivors():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        comparison.process.communicate()


def assert_gone(comparison: Running) -> None:
    """The kernel needs a moment to reap what was killed."""
    deadline = time.monotonic() + 5
    while (left := comparison.survivors()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == {}


def test_a_rank_that_dies_is_named_and_takes_the_others_along(text: str) -> None:
    with running(text, "--recipes", "zeropp", "--hosts", "3") as comparison:
        victim = comparison.wait_for_ranks(3)[1]
        rank = dict(
            entry.split("=", 1)
            for entry in Path(f"/proc/{victim}/environ").read_text().split("\0")
            if "=" in entry
        )["RANK"]
        os.kill(victim, signal.SIGKILL)
        code, out, err = comparison.end()
        assert code == 1
        assert out == ""
        last = err.splitlines()[-1]
        assert last.startswith(f"thinwire: error: rank {rank} ")
        assert "SIGKILL" in last
        assert "Traceback" not in err
        assert_gone(comparison)


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
def test_a_signal_ends_everything_with_one_word(
    text: str, number: signal.Signals, code: int, said: str, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    with running(text, "--recipes", "zeropp", "--html", str(page)) as comparison:
        comparison.wait_for_ranks(2)
        comparison.process.send_signal(number)
        ended = comparison.end()
        assert ended[0] == code
        assert ended[2].splitlines()[-1] == f"thinwire: error: {said}"
        assert "Traceback" not in ended[2]
        assert not page.exists()
        assert_gone(comparison)


def test_a_kill_that_cannot_be_caught_leaves_no_rank(text: str) -> None:
    with running(text, "--recipes", "zeropp") as comparison:
        comparison.wait_for_ranks(2)
        comparison.process.kill()
        comparison.process.wait()
        assert_gone(comparison)


class TestInTheLab:
    pytestmark = NEEDS_LAB

    def test_a_rate_that_cannot_be_shaped_is_refused_before_any_training(
        self, text: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["compare", *QUICK, "--data", text, "--link", "100gbit"]) == 1
        told = capsys.readouterr()
        assert told.err.startswith("thinwire: error: the link was requested at 100 Gbit/s")
        assert "leave --link out" in told.err
        assert "steps" not in told.err

    def test_requested_and_measured_bandwidth_are_told(
        self, text: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        arguments = [*QUICK, "--data", text, "--recipes", "zeropp", "--link", "200mbit", "--json"]
        assert main(["compare", *arguments]) == 0
        told = capsys.readouterr()
        assert "requested 200 Mbit/s, measured" in told.err
        link = json.loads(told.out)["link"]
        assert link["requested_bit_per_s"] == 200e6
        assert link["measured_bit_per_s"] == pytest.approx(200e6, rel=0.1)
