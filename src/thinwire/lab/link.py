"""What a link really carries, measured before anything is concluded from it.

Rates count whole Ethernet frames, as the shaper does: 14 bytes of Ethernet, 20 of IPv4, 20 of TCP
and 12 of its timestamps around each segment's payload. At the usual MTU of 1500 bytes a transfer
gets 95.6 % of the rate as payload.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from dataclasses import dataclass

from thinwire.errors import LabError
from thinwire.lab.network import Network
from thinwire.lab.shaping import bucket_bytes
from thinwire.quantities import format_bit_rate

__all__ = ["TOLERANCE", "LinkRates", "check_link", "measure_link"]

TOLERANCE = 0.10
"""How far the measured rate may be from the requested one, as a fraction of it."""

_ATTEMPTS = 3
# Each of the two filters on the way passes a full bucket at once after a rest, and on a slow link
# data comes in lumps of a bucket. It needs time for both to fade; 2 s bound it.
_WARM_UP_BUCKETS, _WINDOW_BUCKETS = 4, 32
_SHORTEST_WARM_UP_S, _SHORTEST_WINDOW_S, _LONGEST_S = 0.25, 0.4, 2.0
_FRAME_OVERHEAD_BYTES = 14 + 20 + 20 + 12
_BUFFER_BYTES = 1 << 20
_CONNECT_S = 5.0
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # struct linger: drop what is queued, do not wait


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRates:
    """Measured rates between host 0 and host 1, in bit/s of Ethernet frames."""

    forward_bit_per_s: float
    backward_bit_per_s: float

    @property
    def bit_per_s(self) -> float:
        """The mean of both directions."""
        return (self.forward_bit_per_s + self.backward_bit_per_s) / 2

    def error_from(self, requested_bit_per_s: float) -> float:
        """Return the larger relative error of the two directions."""
        rates = (self.forward_bit_per_s, self.backward_bit_per_s)
        return max(abs(rate / requested_bit_per_s - 1) for rate in rates)


def measure_link(network: Network) -> LinkRates | None:
    """Send through a TCP socket from host 0 to host 1, then back, for 0.65 s each (from 50mbit on).

    A measurement that is off the network's own rate by more than `TOLERANCE` is repeated, up to
    three times in all, for another program may have held the processor; the closest one is
    returned. Returns None for a single host, which has no link.

    Raises:
        LabError: the hosts do not reach each other.
    """
    if network.layout.hosts < 2:
        return None
    requested = network.link_bit_per_s
    best = _both_ways(network)
    if requested is None:
        return best
    for _ in range(_ATTEMPTS - 1):
        if best.error_from(requested) <= TOLERANCE:
            break
        again = _both_ways(network)
        best = min(best, again, key=lambda rates: rates.error_from(requested))
    return best


def check_link(requested_bit_per_s: float | None, measured: LinkRates | None) -> None:
    """Do nothing when the measured rates are within `TOLERANCE` of the requested one.

    None for either means that nothing was requested, or that there is no link.

    Raises:
        LabError: they differ by more; states both.
    """
    if requested_bit_per_s is None or measured is None:
        return
    if measured.error_from(requested_bit_per_s) > TOLERANCE:
        raise LabError(
            f"the link was requested at {format_bit_rate(requested_bit_per_s)} and measures "
            f"{format_bit_rate(measured.forward_bit_per_s)} one way, "
            f"{format_bit_rate(measured.backward_bit_per_s)} the other, more than "
            f"{TOLERANCE:.0%} apart: this machine cannot shape that rate now; request a lower "
            "one, or leave --link out for an unshaped link"
        )


def _both_ways(network: Network) -> LinkRates:
    return LinkRates(
        forward_bit_per_s=_one_way(network, sender=0, receiver=1),
        backward_bit_per_s=_one_way(network, sender=1, receiver=0),
    )


def _one_way(network: Network, *, sender: int, receiver: int) -> float:
    address = network.address(receiver)
    try:
        with network.run(receiver, lambda: socket.create_server((address, 0))) as listener:
            target = listener.getsockname()[:2]
            source = network.run(sender, lambda: socket.create_connection(target, _CONNECT_S))
            with source:
                sink, _ = listener.accept()
                with sink:
                    return _flood(source, sink, network.link_bit_per_s)
    except OSError as error:
        raise LabError(
            f"host {sender} does not reach host {receiver} at {address}: {error}"
        ) from error


def _flood(source: socket.socket, sink: socket.socket, expected_bit_per_s: float | None) -> float:
    rate = expected_bit_per_s
    bucket_s = 0.0 if rate is None else 8 * bucket_bytes(rate) / rate
    warm_up_s = min(max(_SHORTEST_WARM_UP_S, _WARM_UP_BUCKETS * bucket_s), _LONGEST_S)
    window_s = min(max(_SHORTEST_WINDOW_S, _WINDOW_BUCKETS * bucket_s), _LONGEST_S)
    for end in (source, sink):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        end.settimeout(_CONNECT_S)
    segment_bytes = source.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
    pump = threading.Thread(target=_send_until_closed, args=(source,), daemon=True)
    pump.start()
    try:
        _drain(sink, warm_up_s)
        payload_bytes, elapsed_s = _drain(sink, window_s)
    finally:
        # Unblocks the sender's thread, which then sees a broken pipe.
        with contextlib.suppress(OSError):
            source.shutdown(socket.SHUT_RDWR)
        pump.join()
    frames_bytes = payload_bytes * (segment_bytes + _FRAME_OVERHEAD_BYTES) / segment_bytes
    return 8 * frames_bytes / elapsed_s


def _send_until_closed(source: socket.socket) -> None:
    zeros = bytes(_BUFFER_BYTES)
    with contextlib.suppress(OSError):
        while True:
            source.sendall(zeros)


def _drain(sink: socket.socket, duration_s: float) -> tuple[int, float]:
    """Receive for that long. Returns the payload bytes and the seconds it really took."""
    buffer = bytearray(_BUFFER_BYTES)
    received_bytes = 0
    start_s = now_s = time.perf_counter()
    while now_s - start_s < duration_s:
        count = sink.recv_into(buffer)
        if count == 0:
            raise OSError("the connection was closed while it was measured")
        received_bytes += count
        now_s = time.perf_counter()
    return received_bytes, now_s - start_s
