"""Which rank failed first, how, and what it said: one sentence out of several wrecks."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["ERROR_PREFIX", "RankFailure", "describe", "first_cause"]

ERROR_PREFIX = "thinwire: error: "
"""How a rank's own sentence begins on its standard error; it is repeated word for word."""

# The last line of a Python traceback; torch writes the rank before it.
_EXCEPTION = re.compile(r"(?:\[rank\d+\]: )?((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)\b.*)")
# A rank that only lost a peer says so in such words (gloo, TCPStore, NCCL, Python's sockets).
_LOST_PEER = re.compile(
    r"connection (was )?(closed|reset|refused)|closed by peer|reset by peer|broken pipe|"
    r"socket closed|remote process exited|timed out waiting|connectFullMesh",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailure:
    """The end of one rank that did not end well. `exit_status` is negative for a signal."""

    rank: int
    host: int
    exit_status: int
    stderr_tail: tuple[str, ...]

    @property
    def last_words(self) -> str:
        """The rank's own error sentence, else its exception, else its last line.

        Libraries write warnings while a process ends, so the very last line often says nothing.
        """
        latest_first = [line.strip() for line in reversed(self.stderr_tail) if line.strip()]
        for line in latest_first:
            if line.startswith(ERROR_PREFIX):
                return line.removeprefix(ERROR_PREFIX)
        for line in latest_first:
            if match := _EXCEPTION.match(line):
                return match[1]
        return latest_first[0] if latest_first else ""

    @property
    def is_victim(self) -> bool:
        """Whether all that the rank says is that it lost another one."""
        ended_itself = self.exit_status > 0 or self.exit_status == -signal.SIGABRT
        return ended_itself and _LOST_PEER.search(self.last_words) is not None


def first_cause(failures: Sequence[RankFailure]) -> RankFailure:
    """Return the failure to report, out of all in the order in which the ranks ended.

    The first, unless it only lost a peer: when one rank's connections break, another may be faster
    in ending than the rank that broke them.
    """
    return next((failure for failure in failures if not failure.is_victim), failures[0])


def describe(failure: RankFailure) -> str:
    """Return the sentence for the user: which rank, how it ended, its last words."""
    words = f": {failure.last_words}" if failure.last_words else ", and it wrote no error"
    return f"rank {failure.rank} (host {failure.host}) {_ending(failure.exit_status)}{words}"


def _ending(exit_status: int) -> str:
    if exit_status >= 0:
        return f"failed with exit code {exit_status}"
    try:
        name = signal.Signals(-exit_status).name
    except ValueError:  # real-time signals have no names
        name = f"signal {-exit_status}"
    hint = " (out of memory? the kernel kills so when memory ends)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"
