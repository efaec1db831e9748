"""How many hosts, how many ranks on each, and the rate of the link between them."""

from __future__ import annotations

from dataclasses import dataclass

from thinwire.errors import ConfigError
from thinwire.quantities import format_bit_rate

__all__ = ["FASTEST_LINK_BIT_PER_S", "MAX_HOSTS", "SLOWEST_LINK_BIT_PER_S", "Layout"]

# The kernel's bridge numbers its ports in ten bits, and port 0 is the bridge itself (BR_MAX_PORTS).
MAX_HOSTS = 1023

# Slower, one offload buffer would hold the link for over half a second, and no brief measurement
# could confirm the rate. Faster than the other, no machine can pretend to be.
SLOWEST_LINK_BIT_PER_S = 1e6
FASTEST_LINK_BIT_PER_S = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """`hosts` hosts of `ranks_per_host` ranks each.

    `link_bit_per_s` is the rate of every host's link, in each direction, counted in Ethernet
    frames; None leaves the link unshaped.

    Raises:
        ConfigError: a number below 1, too many hosts, or a rate outside of what a lab can shape.
    """

    hosts: int
    ranks_per_host: int
    link_bit_per_s: float | None = None

    def __post_init__(self) -> None:
        for name, count in (("hosts", self.hosts), ("ranks per host", self.ranks_per_host)):
            if isinstance(count, bool) or not isinstance(count, int):
                raise ConfigError(f"{name} is {count!r}; write a whole number of 1 or more")
            if count < 1:
                raise ConfigError(f"{name} is {count}; it must be 1 or more")
        if self.hosts > MAX_HOSTS:
            raise ConfigError(
                f"{self.hosts} hosts are too many for one bridge: at most {MAX_HOSTS}"
            )
        rate = self.link_bit_per_s
        if rate is not None and not SLOWEST_LINK_BIT_PER_S <= rate <= FASTEST_LINK_BIT_PER_S:
            raise ConfigError(
                f"the link's rate is {rate:g} bit/s; it can be "
                f"{format_bit_rate(SLOWEST_LINK_BIT_PER_S)} to "
                f"{format_bit_rate(FASTEST_LINK_BIT_PER_S)}, such as 200mbit, or be left out for "
                "an unshaped link"
            )

    @property
    def world_size(self) -> int:
        """All ranks of all hosts."""
        return self.hosts * self.ranks_per_host

    def host_of(self, rank: int) -> int:
        """Return the host of a rank. Ranks are host-major: host 0 has the first ones."""
        return rank // self.ranks_per_host
