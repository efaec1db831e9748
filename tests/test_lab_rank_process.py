"""One rank as a process: what it wrote is heard however late it is collected."""

from __future__ import annotations

import os
import select
import sys

import pytest

from thinwire.lab import Layout, Loopback
from thinwire.lab.rank_process import RankProcess

NETWORK = Loopback(Layout(hosts=2, ranks_per_host=2))


class Heard:
    """A rank that runs some code, with what was heard of it."""

    def __init__(self, code: str, rank: int = 3) -> None:
        self.lines: list[tuple[int, str]] = []
        self.error_lines: list[tuple[int, str]] = []
        self.process = RankProcess(
            NETWORK,
            rank,
            [sys.executable, "-I", "-S", "-c", code],
            dict(os.environ),
            lambda rank, line: self.lines.append((rank, line)),
            lambda rank, line: self.error_lines.append((rank, line)),
        )

    def wait(self) -> None:
        ready, _, _ = select.select([self.process.exit_descriptor], [], [], 10)
        assert ready


def test_the_end_of_the_output_is_read_when_the_rank_is_collected() -> None:
    heard = Heard("import sys; print('one'); sys.stderr.write('two'); sys.stdout.write('three')")
    heard.wait()
    assert heard.lines == []
    assert heard.process.reap() is None
    assert heard.lines == [(3, "one"), (3, "three")]
    assert heard.error_lines == [(3, "two")]


def test_a_failure_knows_its_host_and_the_end_of_its_errors() -> None:
    heard = Heard("import sys\nfor i in range(300): print(i, file=sys.stderr)\nsys.exit(5)")
    heard.wait()
    failure = heard.process.reap()
    assert failure is not None
    assert (failure.rank, failure.host, failure.exit_status) == (3, 1, 5)
    assert failure.stderr_tail == tuple(str(i) for i in range(200, 300))


def test_an_error_in_a_callback_leaves_nothing_open() -> None:
    descriptors = set(os.listdir("/proc/self/fd"))
    heard = Heard("print('x')")
    heard.lines = None  # type: ignore[assignment]
    heard.wait()
    with pytest.raises(AttributeError):
        heard.process.reap()
    assert set(os.listdir("/proc/self/fd")) == descriptors


def test_a_start_without_room_for_a_descriptor_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(pid: int) -> int:
        started.append(pid)
        raise OSError(24, "Too many open files")

    started: list[int] = []
    descriptors = set(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "pidfd_open", refuse)
    with pytest.raises(OSError, match="Too many"):
        Heard("import time; time.sleep(60)")
    assert not os.path.exists(f"/proc/{started[0]}")
    assert set(os.listdir("/proc/self/fd")) == descriptors
