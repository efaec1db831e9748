"""Network namespaces that have no name, only a descriptor.

The kernel keeps a network namespace while a process lives in it or a descriptor of it is open, and
removes it, with every interface in it, when the last of these is gone. So this process holds one
descriptor per namespace and writes nothing to /run/netns: however it ends, SIGKILL included, the
kernel closes the descriptors and no namespace, veth or bridge is left. No clean-up code has to run.

A namespace belongs to a thread, not to a process (setns(2), unshare(2)). Work inside one is done
in a thread made for it and thrown away, so that no other thread finds itself on another network.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self, TypeVar

__all__ = ["Namespace"]

T = TypeVar("T")

_CLONE_NEWNET = 0x40000000  # linux/sched.h
_LIBC = ctypes.CDLL(None, use_errno=True)


class Namespace:
    """A new, empty network namespace, alive until `close` or the end of this process.

    Raises:
        OSError: the kernel refuses: EPERM without CAP_SYS_ADMIN, ENOSPC at the limit of namespaces.
    """

    def __init__(self) -> None:
        self.descriptor = _in_thread(_unshare)
        """An open descriptor of the namespace, closed on exec (int)."""

    @property
    def path(self) -> str:
        """A path by which other programs, such as `ip`, can open the namespace meanwhile."""
        return f"/proc/{os.getpid()}/fd/{self.descriptor}"

    def run(self, task: Callable[[], T]) -> T:
        """Return `task()`, called in a thread of this namespace.

        Sockets that it opens, and processes that it starts, stay in the namespace.
        """

        def enter_and_run() -> T:
            _checked(_LIBC.setns(self.descriptor, _CLONE_NEWNET))
            return task()

        return _in_thread(enter_and_run)

    def close(self) -> None:
        """Let the namespace go. The kernel removes it when nothing else is left in it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _in_thread(task: Callable[[], T]) -> T:
    with ThreadPoolExecutor(max_workers=1) as executor:
        return executor.submit(task).result()


def _unshare() -> int:
    _checked(_LIBC.unshare(_CLONE_NEWNET))
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY)


def _checked(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
