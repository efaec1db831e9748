"""Starts the ranks of a network, watches them in one loop, and ends them all together."""

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

from thinwire.errors import ConfigError, RankError
from thinwire.lab.failure import RankFailure, describe, first_cause
from thinwire.lab.network import Network
from thinwire.lab.port import held_port
from thinwire.lab.rank_process import LineCallback, OutputPipe, RankProcess, rank_environment

__all__ = ["launch"]

_GUARD = Path(__file__).with_name("guard.py")

# How long to wait for a better culprit when the first rank to end says that it lost a peer.
_SETTLE_S = 5.0
# What a rank has between SIGTERM and SIGKILL.
_GRACE_S = 2.0
_RANKS_NAMED = 16


def launch(
    network: Network,
    program: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    on_line: LineCallback | None = None,
    on_error_line: LineCallback | None = None,
    timeout_s: float | None = None,
) -> None:
    """Run `program` once per rank, on the rank's host, and return when all have ended with code 0.

    Args:
        network: the hosts; see `open_network`.
        program: the program and its arguments, the same for every rank. No shell reads it.
        environment: added to this process's environment, below torchrun's variables (RANK,
            WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE, MASTER_ADDR,
            MASTER_PORT) and GLOO_SOCKET_IFNAME.
        on_line: called with (rank, line) for each line on a rank's standard output. What it raises
            ends the ranks and is raised here.
        on_error_line: the same for the standard error.
        timeout_s: how long all ranks may take together.

    Ranks never outlive this call: at its end, and when it is interrupted, all that is left gets
    SIGTERM and two seconds later SIGKILL. When this process is killed, the kernel kills the ranks
    (`enter`), and `guard` what they have started. No signal handler is installed here.

    Raises:
        ConfigError: there is no program, or the timeout is not above zero.
        RankError: a rank failed, and then the others were ended; or ranks still ran at the timeout.
            The message names the rank, how it ended and its last words; a note has the end of its
            standard error.
    """
    if not program:
        raise ConfigError("there is no program to launch; give its name and arguments")
    if timeout_s is not None and not timeout_s > 0:
        raise ConfigError(f"a timeout of {timeout_s} s ends before it begins; give more than 0")
    callbacks = (on_line or _ignore_line, on_error_line or _ignore_line)
    with held_port(network) as port, _Crew() as crew:
        for rank in range(network.layout.world_size):
            variables = rank_environment(network, rank, port, environment or {})
            crew.add(_started(network, rank, program, variables, callbacks))
        crew.watch(timeout_s)


class _Crew:
    """The running ranks, their output, and the guard that outlives this process."""

    def __init__(self) -> None:
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_GUARD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )
        self._selector = selectors.DefaultSelector()
        self._running: dict[int, RankProcess] = {}
        self._failures: list[RankFailure] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def add(self, process: RankProcess) -> None:
        """Take a rank that has just been started."""
        self._tell_guard(process.pid)
        self._running[process.rank] = process
        for pipe in process.pipes:
            self._selector.register(pipe.stream, selectors.EVENT_READ, self._reader(pipe))
        self._selector.register(
            process.exit_descriptor, selectors.EVENT_READ, lambda: self._reap(process)
        )

    def watch(self, timeout_s: float | None) -> None:
        """Return when all ranks have ended well; raise RankError when they do not."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        settled_s = None
        while self._running:
            if self._failures and settled_s is None:
                settled_s = time.monotonic() + _SETTLE_S
            limits = [limit for limit in (deadline_s, settled_s) if limit is not None]
            self._serve_until(min(limits, default=None))
            now_s = time.monotonic()
            if any(not failure.is_victim for failure in self._failures):
                break
            if settled_s is not None and now_s >= settled_s:
                break
            if deadline_s is not None and now_s >= deadline_s:
                raise RankError(f"after {timeout_s:g} s {_names(self._running)} still ran")
        if self._failures:
            cause = first_cause(self._failures)
            error = RankError(describe(cause))
            error.add_note("\n".join(cause.stderr_tail))
            raise error

    def close(self) -> None:
        """End every rank that still runs, then the guard."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self._running.values():
                process.signal(number)
            deadline_s = time.monotonic() + _GRACE_S
            while self._running and time.monotonic() < deadline_s:
                self._serve_until(deadline_s)
        self._selector.close()
        self._guard.kill()
        self._guard.wait()
        assert self._guard.stdin is not None
        self._guard.stdin.close()

    def _serve_until(self, deadline_s: float | None) -> None:
        """Wait for output or the end of a rank, and serve what came."""
        wait_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
        for key, _ in self._selector.select(wait_s):
            if key.fd in self._selector.get_map():  # not closed by an event just served
                key.data()

    def _reader(self, pipe: OutputPipe) -> Callable[[], None]:
        def read() -> None:
            if not pipe.read():
                self._selector.unregister(pipe.stream)

        return read

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

    def _tell_guard(self, number: int) -> None:
        assert self._guard.stdin is not None
        # A guard that somebody killed is missed only if this process is killed too.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._guard.stdin.fileno(), f"{number}\n".encode())


def _started(
    network: Network,
    rank: int,
    program: Sequence[str],
    environment: Mapping[str, str],
    callbacks: tuple[LineCallback, LineCallback],
) -> RankProcess:
    try:
        return RankProcess(network, rank, program, environment, callbacks)
    except OSError as error:
        raise RankError(f"rank {rank} cannot be started: {error.strerror}") from error


def _names(running: Mapping[int, RankProcess]) -> str:
    ranks = sorted(running)
    shown = ", ".join(str(rank) for rank in ranks[:_RANKS_NAMED])
    more = f" and {len(ranks) - _RANKS_NAMED} more" if len(ranks) > _RANKS_NAMED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}"


def _ignore_line(rank: int, line: str) -> None:
    """Take a line that nobody asked for."""
    del rank, line
