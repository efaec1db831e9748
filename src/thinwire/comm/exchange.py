"""Payloads from rank to rank: all-to-all and all-gather of bytes, as full as the wire allows.

Note: rounds. In round d every rank sends to the rank d places on and receives from the rank d
places back, and waits for both. No receiver is ever sent to by two ranks, so no queue builds up
before its link, and the receive is always posted when the send begins.

        round 1          round 2          round 3
    0 -> 1 -> 2 -> 3    0 <-> 2          0 -> 3 -> 2 -> 1
    ^______________|    1 <-> 3          ^______________|

Share of a 200 Mbit/s link that carried payload over gloo, 3 hosts, 1.6 MB to each peer: rounds
0.96; the same sends in chunks, all posted at once, 0.90; gloo's own all-to-all 0.66
(benchmarks/collectives).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

from thinwire.comm.lost_peer import lost_in_ring, lost_peer
from thinwire.comm.topology import Peers

__all__ = ["MAIN_CHANNEL", "exchange", "gather", "gather_rows"]

# Threads that send between the same ranks at once would take each other's payloads if they did not
# tag them differently: each has a channel of its own.
MAIN_CHANNEL = 0
_FIRST_TAG = 0x7417000  # far from those that users choose


def exchange(
    outgoing: Sequence[Tensor],
    incoming: Sequence[Tensor],
    peers: Peers,
    channel: int = MAIN_CHANNEL,
) -> None:
    """Send ``outgoing[p]`` to the one at position ``p`` and receive ``incoming[p]`` from it.

    1. Copy the own payload.
    2. For d = 1 .. W - 1: send to position + d, receive from position - d, wait for both.

    Bytes sent per rank = the sum of ``len(outgoing[p])`` over all other positions ``p``.

    Args:
        outgoing: for every one of the peers, a contiguous uint8 vector.
        incoming: for every one of the peers, a contiguous uint8 vector of the length that it
            sends to this rank.
        peers: those who take part.
        channel: of the thread that sends; on every rank its calls must come in the same order.

    Raises:
        RankError: a peer closed the connection or did not answer in time; says which.
    """
    incoming[peers.rank].copy_(outgoing[peers.rank])
    _in_rounds(outgoing, incoming, peers, channel)


def gather(
    payload: Tensor, gathered: Sequence[Tensor], peers: Peers, channel: int = MAIN_CHANNEL
) -> None:
    """Send ``payload`` to all peers and receive theirs, in rounds.

    Bytes sent per rank = (W - 1) * ``len(payload)``.

    Args:
        payload: a contiguous uint8 vector.
        gathered: for every one of the peers, a contiguous uint8 vector of the length that it sends.
        peers: those who take part.
        channel: as of :func:`exchange`.
    """
    gathered[peers.rank].copy_(payload)
    _in_rounds([payload] * peers.size, gathered, peers, channel)


def gather_rows(payload: Tensor, gathered: Tensor, peers: Peers) -> None:
    """Send ``payload`` to all ranks of a group and receive theirs, outside of a job.

    On gloo in rounds, as :func:`gather`, where no host has two of the ranks, or where there are no
    more than two: gloo's own ring fills 0.68 to 0.92 of the wire (1.6 MB to each of 1 to 3 peers),
    rounds 0.96, and a lost peer is named. Else the backend's own ring, in which a payload enters
    every host once, however many ranks it has.

    Bytes sent per rank = (W - 1) * ``len(payload)``; in a ring all to the successor.

    Args:
        payload: a contiguous uint8 vector of the same length on every rank.
        gathered: contiguous uint8 matrix of W rows of that length; overwritten.
        peers: all ranks of a group.

    Raises:
        RankError: a peer closed the connection or did not answer in time; says which.
    """
    if not len(payload):
        return
    spread_out = len(set(peers.hosts)) == peers.size or peers.size == 2
    if spread_out and dist.get_backend(peers.group) == "gloo":
        gather(payload, list(gathered), peers)
    else:
        try:
            dist.all_gather_single(gathered.view(-1), payload, group=peers.group)
        except RuntimeError as error:
            raise lost_in_ring(peers, error) from error


def _in_rounds(
    outgoing: Sequence[Tensor], incoming: Sequence[Tensor], peers: Peers, channel: int
) -> None:
    for distance in range(1, peers.size):
        target = (peers.rank + distance) % peers.size
        source = (peers.rank - distance) % peers.size
        # both ends know the lengths beforehand: nothing is sent for an empty payload
        planned = [
            (operation, buffer, position)
            for operation, buffer, position in (
                (dist.irecv, incoming[source], source),
                (dist.isend, outgoing[target], target),
            )
            if len(buffer)
        ]
        if planned:
            _run_round(planned, peers, _FIRST_TAG + channel)


def _run_round(
    planned: list[tuple[Callable[..., Any], Tensor, int]], peers: Peers, tag: int
) -> None:
    """Receive and send at the same time, and name the peer that does not answer."""
    waited_for = tuple(position for _, _, position in planned)
    transfers = [
        dist.P2POp(operation, buffer, group=peers.group, group_peer=peers.ranks[position], tag=tag)
        for operation, buffer, position in planned
    ]
    try:
        works = dist.batch_isend_irecv(transfers)
        for index, work in enumerate(works):
            if len(works) == len(planned):  # one for each; some backends return one for all
                waited_for = (planned[index][2],)
            work.wait()
    except RuntimeError as error:
        raise lost_peer(peers, waited_for, error) from error
