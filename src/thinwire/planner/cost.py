"""Seconds of one collective, one codec call, one transfer.

A collective costs latency by message and bytes by bandwidth (alpha-beta):

    ring, rounds    call + messages * (latency + message) + bytes / (rate * share)

where the bytes that leave a host pass its one link together, those of other groups included, while
those within it pass beside them. Under loss a TCP connection does not fill its link: Padhye's
formula (RFC 3448, section 3.1) bounds each connection's rate, Mathis's simpler one is its limit for
few losses.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from thinwire.planner.call import Call, CodecWork, FactorWork
from thinwire.planner.hardware import Cluster, Device, Link

__all__ = [
    "call_s",
    "codec_s",
    "factor_s",
    "format_kind",
    "mathis_bytes_per_s",
    "padhye_bytes_per_s",
    "payload_bytes_per_s",
    "stage_link_s",
    "start_s",
    "tensor_parallel_s",
    "transfer_s",
    "within_bytes_per_s",
    "work_s",
]

FLOAT8_FAMILIES = ("e4m3", "e5m2")
# families that are priced by themselves
OWN_KINDS = ("log", "sign", "topk")

SEGMENT_BYTES = 1448  # what an Ethernet frame carries for TCP with timestamps
TIMEOUT_ROUND_TRIPS = 4  # RFC 3448: t_RTO = 4 R


def mathis_bytes_per_s(round_trip_s: float, loss: float) -> float:
    """The rate of one TCP connection under a few losses: MSS / RTT * sqrt(3/2) / sqrt(p)."""
    return SEGMENT_BYTES / round_trip_s * math.sqrt(1.5 / loss)


def padhye_bytes_per_s(round_trip_s: float, loss: float) -> float:
    """The rate of one TCP connection, timeouts included (RFC 3448, section 3.1)."""
    timeout_s = TIMEOUT_ROUND_TRIPS * round_trip_s
    waiting_s = round_trip_s * math.sqrt(2 * loss / 3)
    waiting_s += timeout_s * 3 * math.sqrt(3 * loss / 8) * loss * (1 + 32 * loss**2)
    return SEGMENT_BYTES / waiting_s


def payload_bytes_per_s(link: Link, message_bytes: float, connections: int = 1) -> float:
    """The payload that a link carries per second, in messages of a size."""
    rate = link.bytes_per_s * link.efficiency.at(max(message_bytes, 1.0))
    if link.loss > 0 and link.protocol in ("tcp", "grpc") and link.latency_s > 0:
        rate = min(rate, connections * padhye_bytes_per_s(2 * link.latency_s, link.loss))
    return rate


def transfer_s(link: Link, size_bytes: float) -> float:
    """Seconds from the first byte sent to the last byte received: one message over a link.

    Loss that no congestion control answers to, as on ``rdma``, is sent again: 1 / (1 - p) times.
    """
    return link.latency_s + _resent(link) * size_bytes / payload_bytes_per_s(link, size_bytes)


def call_s(call: Call, cluster: Cluster) -> float:
    """Seconds of one collective on the wire, its codecs not counted; 0 for a group of one."""
    if call.messages == 0:
        return 0.0
    backend, device, link = cluster.backend, cluster.device, cluster.link
    is_ring = call.algorithm == "ring"
    share = backend.share(call.name, is_ring=is_ring, message_bytes=call.message_bytes)
    within_s = call.inner_bytes / (within_bytes_per_s(device) * share)
    across_s = 0.0
    latency_s = device.within_latency_s
    if call.group.is_across:
        latency_s = link.latency_s
        connections = call.group.sharers * (1 if is_ring else call.group.per_host)
        rate = payload_bytes_per_s(link, call.message_bytes, connections)
        across_s = _resent(link) * call.group.sharers * call.egress_bytes / (rate * share)
    moving_s = max(within_s, across_s)
    waiting_s = call.messages * (latency_s + backend.message_s)
    started_s = backend.started_s(call.name, is_ring=is_ring)
    if call.name == "all_reduce" and backend.has_tree:
        # up and down a tree of ranks, every byte sent at most twice by a rank
        depth = math.ceil(math.log2(call.group.size))
        tree_s = 2 * depth * (latency_s + backend.message_s)
        tree_s += moving_s * call.group.size / (call.group.size - 1)
        return started_s + min(tree_s, waiting_s + moving_s)
    return started_s + waiting_s + moving_s


def start_s(call: Call, cluster: Cluster) -> float:
    """Seconds of one collective that do not depend on its bytes."""
    return call_s(replace(call, egress_bytes=0.0, inner_bytes=0.0), cluster)


def within_bytes_per_s(device: Device) -> float:
    """What collectives within a host really move, each way."""
    return device.within_bytes_per_s * device.within_efficiency


def tensor_parallel_s(device: Device, ranks: int, size_bytes: float) -> float:
    """Seconds of one all-reduce of activations among the ranks of a host (ring, NCCL's default)."""
    if ranks == 1:
        return 0.0
    moving_s = 2 * (ranks - 1) / ranks * size_bytes / within_bytes_per_s(device)
    return 2 * math.log2(ranks) * device.within_latency_s + moving_s


def stage_link_s(cluster: Cluster, size_bytes: float) -> float:
    """Seconds to hand activations to the next pipeline stage; all ranks of a host do so at once."""
    device, link = cluster.device, cluster.link
    if cluster.hosts == 1:
        return device.within_latency_s + size_bytes / within_bytes_per_s(device)
    of_host = cluster.ranks_per_host * size_bytes
    connections = cluster.ranks_per_host
    return link.latency_s + of_host / payload_bytes_per_s(link, size_bytes, connections)


def codec_s(call: Call, device: Device) -> float:
    """Seconds that one rank's codecs and copies take for one collective."""
    seconds = work_s(call.work, device) + call.copied_elements / device.copy_elements_per_s
    return seconds + sum(factor_s(work, device) for work in call.factored)


def factor_s(work: FactorWork, device: Device) -> float:
    """Seconds to factor a matrix of n rows and m columns by K vectors to a side.

    Products with the factors take K n m, Gram-Schmidt K^2 n multiplications; copies and launches
    come on top (arXiv 1905.13727, algorithms 1 and 2).
    """
    numel, factors, price = work.rows * work.columns, work.num_factors, device.low_rank
    copies = price["element_copies"] * numel
    copies += price["factor_copies"] * factors * numel
    copies += price["pair_copies"] * factors**2 * work.rows
    launched_s = price["matrix_s"] + price["pair_s"] * factors**2
    return launched_s + copies / device.copy_elements_per_s


def work_s(work: Iterable[CodecWork], device: Device) -> float:
    """Seconds that one rank's codecs take."""
    return sum(_copies(item, device) for item in work) / device.copy_elements_per_s


def _copies(work: CodecWork, device: Device) -> float:
    """What a codec call costs, in copied fp32 elements."""
    rates, kind = device.codec, format_kind(work)
    by_verb = {
        "encode": rates.encode_copies,
        "decode": rates.decode_copies,
        "sum": rates.sum_copies,
    }
    return work.numel * by_verb[work.verb][kind]


def format_kind(work: CodecWork) -> str:
    """The kind of format by which codecs are priced; what is none of the others is like ``int``."""
    fmt = work.format
    if fmt.is_cast:
        return "cast"
    if fmt.family in FLOAT8_FAMILIES:
        return "fp8"
    if fmt.family in OWN_KINDS:
        return fmt.family
    # what looks for a percentile or for levels does little else beside
    if fmt.percentile is not None:
        return "clip"
    for option in ("levels", "hadamard"):
        if option in fmt.options:
            return option
    return "stochastic" if work.verb == "encode" and fmt.is_stochastic else "int"


def _resent(link: Link) -> float:
    """How often a byte is sent on the average where lost packets are merely sent again."""
    return 1 / (1 - link.loss) if link.protocol in ("ideal", "rdma") else 1.0
