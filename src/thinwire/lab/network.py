"""What ranks run on: hosts with addresses, whether in the lab or over loopback."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import ClassVar, Self, TypeVar

from thinwire.lab.counters import HostCounters
from thinwire.lab.layout import Layout

__all__ = ["Network"]

T = TypeVar("T")


class Network(ABC):
    """Hosts that ranks are launched on. A context manager: it is gone at the end of the block."""

    interface: ClassVar[str]
    """The name of every host's interface, for GLOO_SOCKET_IFNAME."""

    def __init__(self, layout: Layout, *, notice: str | None = None) -> None:
        self.layout = layout
        self.notice = notice
        """A sentence for the user when this is less than what was asked for, else None."""

    @property
    @abstractmethod
    def link_bit_per_s(self) -> float | None:
        """The rate that the links are shaped to, in bit/s; None where nothing shapes them."""

    @abstractmethod
    def address(self, host: int) -> str:
        """Return the IPv4 address of a host."""

    @abstractmethod
    def namespace_descriptor(self, host: int) -> int | None:
        """Return the open descriptor of the host's network namespace; None for our own."""

    @abstractmethod
    def run(self, host: int, task: Callable[[], T]) -> T:
        """Return `task()`, called on the host's network. Sockets that it opens stay there."""

    @abstractmethod
    def counters(self) -> tuple[HostCounters, ...]:
        """Return the counters of each host's interface; an empty tuple where none are kept."""

    @abstractmethod
    def close(self) -> None:
        """Remove the hosts. Harmless when called again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
