"""The running ranks of one launch, watched in one loop and ended all together."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from thinwire.errors import RankError
from thinwire.lab.failure import RankFailure, describe, first_cause
from thinwire.lab.network import Network
from thinwire.lab.rank_process import LineCallback, OutputPipe, RankProcess

__all__ = ["Crew"]

_GUARD = Path(__file__).with_name("guard.py")

# How long to wait for a better culprit when all that failed say that they lost a peer.
_SETTLE_S = 5.0
# What a rank has between SIGTERM and SIGKILL.
_GRACE_S = 2.0
_RANKS_NAMED = 16


class Crew:
    """Ranks on a network, their output, and the guard that outlives this process.

    A context manager: at the end of the block no rank is left.
    """

    def __init__(
        self, network: Network, on_line: LineCallback | None, on_error_line: LineCallback | None
    ) -> None:
        self._network = network
        self._on_line = on_line
        self._on_error_line = on_error_line
        self._running: dict[int, RankProcess] = {}
        self._failures: list[RankFailure] = []
        self._selector = selectors.DefaultSelector()
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_GUARD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )

    def start(self, rank: int, program: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start a rank.

        Raises:
            RankError: the system has no room for another process.
        """
        try:
            process = RankProcess(
                self._network, rank, program, environment, self._hear, self._hear_error
            )
        except OSError as error:
            raise RankError(f"rank {rank} cannot be started: {error.strerror}") from error
        self._running[rank] = process
        self._tell_guard(process.pid)
        for pipe in process.pipes:
            self._selector.register(pipe.stream, selectors.EVENT_READ, self._reader(pipe))
        self._selector.register(
            process.exit_descriptor, selectors.EVENT_READ, lambda: self._reap(process)
        )

    def watch(self, timeout_s: float | None) -> None:
        """Return when all ranks have ended with code 0.

        Raises:
            RankError: a rank failed, or some still ran after `timeout_s`.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while self._running and not self._failures:
            self._serve_until(deadline_s)
            if deadline_s is not None and time.monotonic() >= deadline_s and self._running:
                raise RankError(f"after {timeout_s:g} s {_names(self._running)} still ran")
        settled_s = time.monotonic() + _SETTLE_S
        while self._running and all(failure.is_victim for failure in self._failures):
            self._serve_until(settled_s)
            if time.monotonic() >= settled_s:
                break
        if self._failures:
            cause = first_cause(self._failures)
            error = RankError(describe(cause))
            error.add_note("\n".join(cause.stderr_tail))
            raise error

    def close(self) -> None:
        """End every rank that still runs, with what it has started, then the guard."""
        # What ranks write from here on interests nobody, and a callback that has raised, because
        # the terminal is gone for example, would raise again and stop the ending.
        self._on_line = self._on_error_line = None
        try:
            self._end_all(signal.SIGTERM)
        finally:  # a second Ctrl-C ends the patience, not the duty
            self._end_all(signal.SIGKILL)
            self._selector.close()
            self._guard.kill()
            self._guard.wait()
            assert self._guard.stdin is not None
            self._guard.stdin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _hear(self, rank: int, line: str) -> None:
        if self._on_line is not None:
            self._on_line(rank, line)

    def _hear_error(self, rank: int, line: str) -> None:
        if self._on_error_line is not None:
            self._on_error_line(rank, line)

    def _reader(self, pipe: OutputPipe) -> Callable[[], None]:
        def read() -> None:
            if not pipe.read():
                self._selector.unregister(pipe.stream)

        return read

    def _serve_until(self, deadline_s: float | None) -> None:
        """Wait for output or the end of a rank, no longer than that, and serve what came."""
        wait_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
        for key, _ in self._selector.select(wait_s):
            if key.fd in self._selector.get_map():  # not closed by an event just served
                key.data()

    def _reap(self, process: RankProcess) -> None:
        self._selector.unregister(process.exit_descriptor)
        for pipe in process.pipes:
            with contextlib.suppress(KeyError):  # unregistered at the end of the stream
                self._selector.unregister(pipe.stream)
        self._tell_guard(-process.pid)
        del self._running[process.rank]
        failure = process.reap()
        if failure is not None:
            self._failures.append(failure)

    def _end_all(self, number: signal.Signals) -> None:
        for process in self._running.values():
            process.signal(number)
        deadline_s = time.monotonic() + _GRACE_S
        while self._running and time.monotonic() < deadline_s:
            self._serve_until(deadline_s)

    def _tell_guard(self, number: int) -> None:
        assert self._guard.stdin is not None
        # A guard that somebody has killed is missed only if this process is killed too.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._guard.stdin.fileno(), f"{number}\n".encode())


def _names(running: Mapping[int, RankProcess]) -> str:
    ranks = sorted(running)
    shown = ", ".join(str(rank) for rank in ranks[:_RANKS_NAMED])
    more = f" and {len(ranks) - _RANKS_NAMED} more" if len(ranks) > _RANKS_NAMED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}"
