"""One rank as a process: its environment, its start, its output, its end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from thinwire.lab.failure import RankFailure
from thinwire.lab.lines import LineSplitter
from thinwire.lab.network import Network

__all__ = ["OutputPipe", "RankProcess", "rank_environment"]

_ENTER = Path(__file__).with_name("enter.py")
_PIPE_BYTES = 1 << 16  # what a pipe holds (pipe(7))
_TAIL_LINES = 100

LineCallback = Callable[[int, str], None]


def rank_environment(
    network: Network, rank: int, port: int, extra: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a rank: this process's own, `extra`, and torchrun's variables.

    Ranks are host-major. What an outer torchrun has set for its agent is left out, since it would
    make rank 0 look for a store that nobody serves. OMP_NUM_THREADS is 1 unless `extra` sets it.
    """
    layout = network.layout
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("TORCHELASTIC_")}
    return {
        **inherited,
        "OMP_NUM_THREADS": "1",
        **extra,
        "RANK": str(rank),
        "WORLD_SIZE": str(layout.world_size),
        "LOCAL_RANK": str(rank % layout.ranks_per_host),
        "LOCAL_WORLD_SIZE": str(layout.ranks_per_host),
        "GROUP_RANK": str(layout.host_of(rank)),
        "GROUP_WORLD_SIZE": str(layout.hosts),
        "MASTER_ADDR": network.address(0),
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": network.interface,
    }


class OutputPipe:
    """One of a rank's output streams, read without blocking, handed on line by line."""

    def __init__(self, stream: IO[bytes], take_line: Callable[[str], None]) -> None:
        os.set_blocking(stream.fileno(), False)
        self.stream = stream
        self._take_line = take_line
        self._splitter = LineSplitter()

    def read(self) -> bool:
        """Hand on what is there. Returns False at the end of the stream."""
        try:
            chunk = os.read(self.stream.fileno(), _PIPE_BYTES)
        except BlockingIOError:
            return True
        for line in self._splitter.feed(chunk) if chunk else self._splitter.finish():
            self._take_line(line)
        return bool(chunk)

    def close(self) -> None:
        """Hand on what an ended program has left in the pipe, and close it.

        Not a read until the end: a process that the program has started may still hold the pipe.
        One read takes all that a pipe can hold.
        """
        try:
            if self.read():
                for line in self._splitter.finish():
                    self._take_line(line)
        finally:
            self.stream.close()


class RankProcess:
    """A running rank, the leader of its own session and process group.

    So a Ctrl-C at the terminal reaches the launcher alone, which then ends every rank, and a signal
    to the group reaches what the rank has started too.

    Raises:
        OSError: the system has no room for another process or its pipes.
    """

    def __init__(
        self,
        network: Network,
        rank: int,
        program: Sequence[str],
        environment: Mapping[str, str],
        on_line: LineCallback,
        on_error_line: LineCallback,
    ) -> None:
        self.rank = rank
        self.host = network.layout.host_of(rank)
        self._process = _start(program, environment, network.namespace_descriptor(self.host))
        self.pid = self._process.pid
        try:
            # Readable as soon as the process has ended (pidfd_open(2)).
            self.exit_descriptor = os.pidfd_open(self.pid)
        except OSError:
            self._process.kill()
            self._process.communicate()
            raise
        self._stderr_tail: deque[str] = deque(maxlen=_TAIL_LINES)

        def take_error_line(line: str) -> None:
            self._stderr_tail.append(line)
            on_error_line(rank, line)

        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self.pipes = (
            OutputPipe(self._process.stdout, lambda line: on_line(rank, line)),
            OutputPipe(self._process.stderr, take_error_line),
        )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the rank and to what it has started."""
        # The leader is not collected before `reap`, so the group's number cannot be another's.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def reap(self) -> RankFailure | None:
        """Collect the ended process: kill what it left behind, hand on its last output.

        Returns None after an exit code of 0.
        """
        self.signal(signal.SIGKILL)
        exit_status = self._process.wait()
        os.close(self.exit_descriptor)
        with contextlib.ExitStack() as stack:
            for pipe in self.pipes:
                stack.callback(pipe.close)
        if exit_status == 0:
            return None
        return RankFailure(
            rank=self.rank,
            host=self.host,
            exit_status=exit_status,
            stderr_tail=tuple(self._stderr_tail),
        )


def _start(
    program: Sequence[str], environment: Mapping[str, str], namespace: int | None
) -> subprocess.Popen[bytes]:
    entered = "-" if namespace is None else str(namespace)
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(_ENTER), str(os.getpid()), entered, *program],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        env=environment,
        pass_fds=() if namespace is None else (namespace,),
        start_new_session=True,
    )
