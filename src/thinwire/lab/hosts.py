"""The lab itself: hosts made of network namespaces, joined by a bridge over shaped links.

         host 0                     hub                     host 1
    +---------------+      +-------------------+      +---------------+
    |  eth0 ==shape==>=====| port0  bridge     |      |               |
    |  198.18.0.1   |=====<=shape==  br0  port1 |=====>|  eth0         |
    +---------------+ veth +-------------------+ veth |  198.18.0.2   |
                                                      +---------------+

Each end of each veth pair has a token bucket filter (`tc tbf`) on what leaves it: the host's end
limits what the host sends, the hub's end what it receives. So a host has a full-duplex link of the
rate, and several senders to one receiver share the receiver's link, as on a real switch.

The namespaces are anonymous (see `namespace`), so labs never meet: all use the same addresses, from
198.18.0.0/15, which RFC 2544 reserves for tests between isolated networks.

Hosts send by Reno's congestion control, which every kernel has, whatever the machine's default:
what a lab measures must not depend on that. BBR, which paces and probes, filled 0.84 to 0.95 of
200 Mbit/s among four hosts with the same exchange in different runs, Reno 0.96 in each. CUBIC, the
usual default, keeps to Reno's rate on paths as short as these (RFC 9438, section 4.3).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from ipaddress import IPv4Network
from typing import ClassVar, TypeVar

from thinwire.errors import LabError
from thinwire.lab.counters import HostCounters, read_interface
from thinwire.lab.iproute import run_batch
from thinwire.lab.layout import Layout
from thinwire.lab.namespace import Namespace
from thinwire.lab.network import Network
from thinwire.lab.shaping import shaping

__all__ = ["Lab"]

T = TypeVar("T")

_ADDRESSES = IPv4Network("198.18.0.0/15")
_CONGESTION_CONTROL = "reno"


class Lab(Network):
    """Hosts made of network namespaces joined by a bridge, their links shaped to the layout's rate.

    Raises:
        LabError: a namespace or an interface cannot be made; see `privilege.lab_obstacle`.
    """

    interface: ClassVar[str] = "eth0"

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        with ExitStack() as stack:
            self._hub = stack.enter_context(_namespace())
            self._hosts = [stack.enter_context(_namespace()) for _ in range(layout.hosts)]
            self._build_hub()
            for host in range(layout.hosts):
                self._build_host(host)
            self._namespaces = stack.pop_all()

    @property
    def link_bit_per_s(self) -> float | None:
        """The rate that every host's link is shaped to in both directions, in bit/s."""
        return self.layout.link_bit_per_s

    def address(self, host: int) -> str:
        """Return the address of the host's eth0, in 198.18.0.0/15."""
        return str(_ADDRESSES[host + 1])

    def namespace_descriptor(self, host: int) -> int | None:
        """Return the open descriptor of the host's namespace."""
        return self._hosts[host].descriptor

    def run(self, host: int, task: Callable[[], T]) -> T:
        """Return `task()`, called in a thread of the host's namespace."""
        return self._hosts[host].run(task)

    def counters(self) -> tuple[HostCounters, ...]:
        """Return the counters of each host's eth0, host by host."""
        return tuple(host.run(lambda: read_interface(self.interface)) for host in self._hosts)

    def close(self) -> None:
        """Let all namespaces go; processes still in them keep theirs until they end."""
        self._namespaces.close()

    def _build_hub(self) -> None:
        commands = ["link add br0 type bridge mcast_snooping 0", "link set br0 addrgenmode none up"]
        for host, namespace in enumerate(self._hosts):
            peer = f"peer name {self.interface} netns {namespace.path}"
            commands.append(f"link add port{host} type veth {peer}")
            commands.append(f"link set port{host} master br0 addrgenmode none up")
        run_batch(self._hub, "ip", commands)
        self._shape(self._hub, [f"port{host}" for host in range(len(self._hosts))])

    def _build_host(self, host: int) -> None:
        address = self.address(host)
        route = f"{_ADDRESSES} dev {self.interface} src {address} congctl {_CONGESTION_CONTROL}"
        # No IPv6 address is made for eth0: its discovery traffic would be counted as the ranks'.
        commands = [
            "link set lo up",
            f"address add {address}/{_ADDRESSES.prefixlen} dev {self.interface} noprefixroute",
            f"link set {self.interface} addrgenmode none up",
            f"route add {route}",
        ]
        run_batch(self._hosts[host], "ip", commands)
        self._shape(self._hosts[host], [self.interface])

    def _shape(self, namespace: Namespace, interfaces: list[str]) -> None:
        rate = self.layout.link_bit_per_s
        if rate is not None:
            words = shaping(rate)
            run_batch(
                namespace, "tc", [f"qdisc add dev {name} root {words}" for name in interfaces]
            )


def _namespace() -> Namespace:
    try:
        return Namespace()
    except OSError as error:
        raise LabError(f"the kernel refuses a network namespace: {error.strerror}") from error
