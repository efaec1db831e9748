"""The null lab: every host is this machine, the link is its loopback interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeVar

from thinwire.lab.counters import HostCounters
from thinwire.lab.network import Network

__all__ = ["Loopback"]

T = TypeVar("T")


class Loopback(Network):
    """All ranks on this machine's own network. Nothing is shaped and nothing is counted.

    Ranks still learn which host they belong to (GROUP_RANK), so a recipe of two levels runs too.
    """

    interface: ClassVar[str] = "lo"

    @property
    def link_bit_per_s(self) -> float | None:
        """None: loopback is not shaped, whatever the layout asks for."""
        return None

    def address(self, host: int) -> str:
        """Return 127.0.0.1 for every host."""
        del host
        return "127.0.0.1"

    def namespace_descriptor(self, host: int) -> int | None:
        """None: no namespace is to be entered."""
        del host
        return None

    def run(self, host: int, task: Callable[[], T]) -> T:
        """Return `task()`."""
        del host
        return task()

    def counters(self) -> tuple[HostCounters, ...]:
        """Return nothing: the loopback interface is shared with every other program."""
        return ()

    def close(self) -> None:
        """Do nothing."""
