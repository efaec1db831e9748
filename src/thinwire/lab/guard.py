"""Outlives the launcher by a moment, to kill what ranks leave behind when it is killed.

    python -I -S guard.py < PIPE

The kernel kills the ranks with their launcher (see `enter`), but not the processes that ranks
have started. Each rank leads a process group; the launcher writes the group's number to the pipe,
and its negative when the group has ended. The pipe ends when the launcher does, however it dies;
then the groups still noted are killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys


def _main() -> None:
    groups: set[int] = set()
    for line in sys.stdin:
        number = int(line)
        if number > 0:
            groups.add(number)
        else:
            groups.discard(-number)
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    _main()
