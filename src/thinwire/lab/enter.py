"""Becomes a rank: enters its namespace, ties its life to the launcher's, runs its program.

    python -I -S enter.py LAUNCHER_PID NAMESPACE_DESCRIPTOR|- PROGRAM ARGUMENT...

A script of its own, and not code between fork and exec, because that code would run in a copy of a
process whose other threads may have held locks. It imports nothing of thinwire and starts in 10 ms.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_CLONE_NEWNET = 0x40000000  # linux/sched.h
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_EXIT_NOT_STARTED = 127  # as the shell says "command not found"


def _main(launcher_pid: int, namespace: str, program: list[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    # The kernel kills this process when the launcher's thread ends, and keeps that through exec.
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        _give_up(f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != launcher_pid:
        return  # the launcher was gone before the line above; nobody waits for this rank
    if namespace != "-":
        if libc.setns(int(namespace), _CLONE_NEWNET) != 0:
            _give_up(f"setns: {os.strerror(ctypes.get_errno())}")
        os.close(int(namespace))
    try:
        os.execvp(program[0], program)
    except OSError as error:
        _give_up(f"{program[0]!r} cannot be started: {error.strerror}")


def _give_up(reason: str) -> None:
    sys.stderr.write(f"thinwire: error: {reason}\n")
    sys.stderr.flush()
    os._exit(_EXIT_NOT_STARTED)


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
