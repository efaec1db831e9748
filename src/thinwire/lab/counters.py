"""What the kernel counted on an interface, beside what the ledger says was sent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from thinwire.errors import LabError

__all__ = ["HostCounters", "read_interface"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCounters:
    """Bytes that one host's interface has sent and received since the lab was made.

    They include Ethernet, IP and TCP headers and the acknowledgements. A veth interface counts a
    segmentation-offloaded buffer of up to 64 KiB as one frame with one header, so the excess over
    the payload is well under the 4.6 % that the shaper charges for frames of 1514 bytes.
    """

    sent_bytes: int
    received_bytes: int

    def since(self, earlier: HostCounters) -> HostCounters:
        """Return what was counted after `earlier`."""
        return HostCounters(
            sent_bytes=self.sent_bytes - earlier.sent_bytes,
            received_bytes=self.received_bytes - earlier.received_bytes,
        )


def read_interface(name: str) -> HostCounters:
    """Read the counters of an interface in the calling thread's network namespace.

    A rank calls it with GLOO_SOCKET_IFNAME for its own host. /proc/thread-self is read because
    /sys shows the namespace in which it was mounted, and /proc/net that of the main thread.

    Raises:
        LabError: there is no such interface.
    """
    for line in Path("/proc/thread-self/net/dev").read_text(encoding="ascii").splitlines()[2:]:
        label, _, fields = line.partition(":")
        if label.strip() == name:
            numbers = fields.split()
            return HostCounters(sent_bytes=int(numbers[8]), received_bytes=int(numbers[0]))
    raise LabError(f"there is no interface {name!r} in this network namespace")
