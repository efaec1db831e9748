"""What is timed of collectives: every way in which recipes move payloads, by bytes per message."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

from thinwire.comm.exchange import exchange, gather
from thinwire.comm.topology import Peers, Topology, discover_topology
from thinwire.train.calibration.clock import Case

__all__ = ["RINGS", "ROUNDS", "message_sizes", "wire_cases"]

# ways by algorithm: in a ring each message waits for the one before, in rounds it has its own peer
RINGS = ("all_gather", "reduce_scatter", "all_reduce")
ROUNDS = ("exchange", "gather")

SMALLEST_BYTES = 1 << 10
# of an unshaped link, whose rate the processors bound
ASSUMED_BIT_PER_S = 8e9
LONGEST_S = 0.3
LARGEST_BYTES = 16 << 20
FINER = (1, 4, 16, 64, 256)


def message_sizes(link_bit_per_s: float | None, senders: int) -> tuple[int, ...]:
    """Bytes of a message, from one that costs latency only to one of some tenths of a second.

    Args:
        link_bit_per_s: of a host; ``None``: not shaped.
        senders: messages that leave a host at once.
    """
    rate = (link_bit_per_s or ASSUMED_BIT_PER_S) / 8
    largest = min(LARGEST_BYTES, int(rate * LONGEST_S / max(1, senders)))
    # multiples of 64: whole elements of every dtype
    sizes = {64 * (largest // finer // 64) for finer in FINER}
    return tuple(sorted({SMALLEST_BYTES, *(size for size in sizes if size > 2 * SMALLEST_BYTES)}))


def wire_cases(link_bit_per_s: float | None, device: torch.device) -> Iterator[Case]:
    """The ways among all ranks, and among those of a host where it has several.

    The case is ``across`` or ``within``, the size the bytes of one message. A collective call.
    """
    world = dist.group.WORLD
    assert world is not None  # the worker has initialized it
    topology = discover_topology()
    peers = topology.peers(world)
    per_host = topology.ranks_per_host or 1
    if len(set(peers.hosts)) > 1:
        for size in message_sizes(link_bit_per_s, per_host * (peers.size - per_host)):
            yield from _ways("across", peers, size, device)
    if per_host > 1:
        within = _host_peers(topology, per_host)
        for size in message_sizes(None, per_host):
            yield from _ways("within", within, size, device)


def _host_peers(topology: Topology, per_host: int) -> Peers:
    """This host's ranks as a group of their own; every rank makes all groups."""
    mine = dist.get_rank() // per_host
    starts = range(0, topology.size, per_host)
    groups = [dist.new_group(list(range(start, start + per_host))) for start in starts]
    return topology.peers(groups[mine])


def _ways(case: str, peers: Peers, nbytes: int, device: torch.device) -> Iterator[Case]:
    group, size = peers.group, peers.size
    payload = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    rows = torch.empty((size, nbytes), dtype=torch.uint8, device=device)
    shard = torch.zeros(nbytes // 4, device=device)
    whole = torch.zeros(size * nbytes // 4, device=device)
    outgoing, incoming = [payload] * size, list(rows)
    ways: dict[str, Callable[[], object]] = {
        "all_gather": lambda: dist.all_gather_single(rows.view(-1), payload, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_single(shard, whole, group=group),
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "exchange": lambda: exchange(outgoing, incoming, peers),
        "gather": lambda: gather(payload, incoming, peers),
    }
    for name, action in ways.items():
        yield Case(figure=name, case=case, size=nbytes, action=action, waits=True)
