"""Payloads from rank to rank: all-to-all and all-gather of bytes, as full as the wire allows.

Note: rounds. In round d every rank sends to the rank d places on and receives from the rank d
places back, and waits for both. No receiver is ever sent to by two ranks, so no queue builds up
before its link, and the receive is always posted when the send begins.

        round 1          round 2          round 3
    0 -> 1 -> 2 -> 3    0 <-> 2          0 -> 3 -> 2 -> 1
    ^______________|    1 <-> 3          ^______________|

Share of a 200 Mbit/s link that carried payload over gloo, 4 hosts, 1.6 MB to each peer: rounds
0.95; the same sends in chunks, all posted at once, 0.83; gloo's own all-to-all 0.61
(benchmarks/collectives).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.comm.topology import Peers

__all__ = ["exchange", "gather"]


def exchange(outgoing: Sequence[Tensor], incoming: Sequence[Tensor], peers: Peers) -> None:
    """Send ``outgoing[p]`` to rank ``p`` and receive ``incoming[p]`` from it, for every ``p``.

    1. Copy the own payload.
    2. For d = 1 .. W - 1: send to rank + d, receive from rank - d, wait for both.

    Bytes sent per rank = the sum of ``len(outgoing[p])`` over all other ranks ``p``.

    Args:
        outgoing: for every rank of the group, a contiguous uint8 vector.
        incoming: for every rank of the group, a contiguous uint8 vector of the length that it
            sends to this rank.
        peers: the group.
    """
    if dist.get_backend(peers.group) == "gloo":
        _exchange_in_rounds(outgoing, incoming, peers)
    else:
        _exchange_by_backend(outgoing, incoming, peers)


def gather(payload: Tensor, gathered: Tensor, peers: Peers) -> None:
    """Send ``payload`` to every rank and receive theirs as the rows of ``gathered``.

    The backend's ring, but for two ranks on gloo, whose ring fills 0.6 of the wire: they exchange.

    Bytes sent per rank = (W - 1) * ``len(payload)``, all to the successor in the ring.

    Args:
        payload: a contiguous uint8 vector of the same length on every rank.
        gathered: uint8 matrix of W rows of that length; overwritten.
        peers: the group.
    """
    if not len(payload):
        return
    if peers.size == 2 and dist.get_backend(peers.group) == "gloo":
        _exchange_in_rounds([payload, payload], list(gathered), peers)
    else:
        dist.all_gather_single(gathered.view(-1), payload, group=peers.group)


def _exchange_in_rounds(
    outgoing: Sequence[Tensor], incoming: Sequence[Tensor], peers: Peers
) -> None:
    rank, size, group = peers.rank, peers.size, peers.group
    incoming[rank].copy_(outgoing[rank])
    for distance in range(1, size):
        target, source = (rank + distance) % size, (rank - distance) % size
        # an empty payload is not sent: both ends know its length beforehand
        works = [
            dist.irecv(incoming[source], group=group, group_src=source, tag=distance)
            if len(incoming[source])
            else None,
            dist.isend(outgoing[target], group=group, group_dst=target, tag=distance)
            if len(outgoing[target])
            else None,
        ]
        for work in works:
            if work is not None:
                work.wait()


def _exchange_by_backend(
    outgoing: Sequence[Tensor], incoming: Sequence[Tensor], peers: Peers
) -> None:
    """The same through the backend's own all-to-all, which NCCL runs as grouped sends."""
    lengths = [len(payload) for payload in incoming]
    received = torch.empty(sum(lengths), dtype=torch.uint8, device=outgoing[0].device)
    dist.all_to_all_single(
        received,
        torch.cat(list(outgoing)),
        output_split_sizes=lengths,
        input_split_sizes=[len(payload) for payload in outgoing],
        group=peers.group,
    )
    for target, source in zip(incoming, received.split(lengths), strict=True):
        target.copy_(source)
