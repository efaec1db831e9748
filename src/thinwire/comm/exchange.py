"""All-to-all of payloads: every rank sends one payload to every other.

gloo's own all-to-all fills 0.6 of a thin wire. Sending in chunks with every receive posted first
fills 0.8: gloo answers a send only when its receive is posted, and the control messages that say
so queue behind data on the same connection.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.comm.topology import Peers

__all__ = ["exchange"]

CHUNK_BYTES = 512 * 1024


def exchange(outgoing: Sequence[Tensor], incoming: Sequence[Tensor], peers: Peers) -> None:
    """Send ``outgoing[p]`` to rank ``p`` and receive ``incoming[p]`` from it, for every ``p``.

    1. Post a receive for every chunk from every other rank, chunk by chunk.
    2. Post a send for every chunk to every other rank, the nearest successor first, so that no
       two ranks start with the same receiver.
    3. Copy the own payload and wait for all.

    Bytes sent per rank = the sum of ``len(outgoing[p])`` over all other ranks ``p``.

    Args:
        outgoing: for every rank of the group, a contiguous uint8 vector.
        incoming: for every rank of the group, a contiguous uint8 vector of the length that this
            rank sends to me.
        peers: the group.
    """
    if dist.get_backend(peers.group) != "gloo":
        _exchange_by_backend(outgoing, incoming, peers)
        return
    rank, size = peers.rank, peers.size
    works: list[dist.Work | None] = []
    for start in range(0, max(map(len, incoming), default=0), CHUNK_BYTES):
        for distance in range(1, size):
            source = (rank - distance) % size
            chunk = incoming[source][start : start + CHUNK_BYTES]
            if chunk.numel():
                works.append(
                    dist.irecv(chunk, group=peers.group, group_src=source, tag=start // CHUNK_BYTES)
                )
    for start in range(0, max(map(len, outgoing), default=0), CHUNK_BYTES):
        for distance in range(1, size):
            target = (rank + distance) % size
            chunk = outgoing[target][start : start + CHUNK_BYTES]
            if chunk.numel():
                works.append(
                    dist.isend(chunk, group=peers.group, group_dst=target, tag=start // CHUNK_BYTES)
                )
    incoming[rank].copy_(outgoing[rank])
    for work in works:
        if work is not None:
            work.wait()


def _exchange_by_backend(
    outgoing: Sequence[Tensor], incoming: Sequence[Tensor], peers: Peers
) -> None:
    """The same through the backend's own all-to-all, which NCCL runs as grouped sends."""
    received = torch.empty(
        sum(map(len, incoming)), dtype=torch.uint8, device=outgoing[0].device
    )
    dist.all_to_all_single(
        received,
        torch.cat(list(outgoing)),
        output_split_sizes=[len(payload) for payload in incoming],
        input_split_sizes=[len(payload) for payload in outgoing],
        group=peers.group,
    )
    for target, source in zip(incoming, received.split([len(p) for p in incoming]), strict=True):
        target.copy_(source)
