"""Two-level reduction: within the host first, across hosts with what is left (ZeRO++ qgZ).

Note: the order of slices. Rank ``h * R + l`` (host h of H, place l of R there) must end with slot
``h * R + l``. In the first hop it collects, from its neighbours on the host, the slots
``l, R + l, 2R + l, ...``: those that ranks with its own place own on every host. In the second hop
it sends each of them home, to the rank with its place on that host.

    hop 1, within host 0           hop 2, across, place 0
    rank 0 <- slots 0, 2 <- rank 1     rank 0 (host 0) <- slot 0 <- rank 2 (host 1)
    rank 1 <- slots 1, 3 <- rank 0     rank 2 (host 1) <- slot 2 <- rank 0 (host 0)

One hop sends (W - R) slots across hosts per rank, two hops send (H - 1): R times fewer.

Note: rotations. A sum of rotated values is the rotated sum. What both hops rotate (``+hadamard``)
is therefore rotated once, before the first, and back once, after the second. Residuals and what
earlier micro-batches left are kept unrotated: with them, each hop rotates.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from thinwire.comm.collectives import Traffic
from thinwire.comm.exchange import exchange
from thinwire.comm.layout import ShardLayout
from thinwire.comm.ledger import BF16_BYTES
from thinwire.comm.reduction import ReduceOp, finish_sum
from thinwire.comm.sender import Job, Transfer
from thinwire.comm.topology import Peers, even_ranks_per_host
from thinwire.errors import ConfigError
from thinwire.wire.feedback import NO_FEEDBACK
from thinwire.wire.key import Key

__all__ = ["FirstHop", "TwoLevels", "reduce_scatter_in_two_hops", "reduce_within"]


@dataclass(frozen=True, slots=True)
class TwoLevels:
    """The ranks of a group, split into those on this host and those with this place elsewhere.

    Attributes:
        peers: all ranks of the group.
        within: the ranks on this host, in order of their place.
        across: the ranks with the same place on every host, in order of the hosts.
    """

    peers: Peers
    within: Peers
    across: Peers

    @classmethod
    def of(cls, peers: Peers) -> TwoLevels:
        """Split a group.

        Raises:
            ConfigError: hosts hold different numbers of ranks, or a host's ranks are not
                consecutive.
        """
        per_host = even_ranks_per_host(peers.hosts)
        if per_host is None:
            raise ConfigError(
                "two hops (grads_within, accumulate=within, or a replica per host) need the same "
                "number of consecutive ranks on every host, but rank by rank the hosts are "
                f"{peers.hosts}; start as many ranks on each host, or leave grads_within, "
                "accumulate=within and replica=host out"
            )
        host, place = divmod(peers.rank, per_host)
        return cls(
            peers=peers,
            within=peers.subset(range(host * per_host, (host + 1) * per_host)),
            across=peers.subset(range(place, peers.size, per_host)),
        )


@dataclass(frozen=True, slots=True)
class FirstHop:
    """What a reduction in two hops needs to know of the first.

    Attributes:
        traffic: the ranks of the host, and a layout with the formats for within it.
        held: what earlier reductions within the host left, in partial slots; ``None``: nothing.
    """

    traffic: Traffic
    held: Tensor | None = None


def reduce_within(partial: Tensor, contributions: Tensor, hop: FirstHop, key: Key) -> Job:
    """The first hop by itself: what the host contributes to the slots of the own place; as a job.

    1. Encode W slots; send each neighbour on the host the H slots of its place.
    2. Decode and sum the R contributions of the host in fp32, in rank order: H partial slots.

    Bytes sent per rank = (R - 1) * H slots, all within the host.

    Args:
        partial: fp32 matrix of H slots; overwritten.
        contributions: vector of W slots, fp32, bf16 or fp16.
        hop: those who take part.
        key: of the random numbers; the rank is part of it.
    """
    layout = hop.traffic.layout
    first = _first_hop(partial, contributions, hop, key, read_as=layout, is_last=True)
    sent_bytes = yield from first
    hop.traffic.ledger.record(
        "reduce_scatter",
        within_bytes=sent_bytes,
        bf16_bytes=(hop.traffic.peers.size - 1) * len(partial) * layout.slot_numel * BF16_BYTES,
        formats=layout.formats,
    )


def reduce_scatter_in_two_hops(
    output: Tensor,
    contributions: Tensor,
    within: FirstHop,
    across: Traffic,
    key: Key,
    op: ReduceOp,
) -> Job:
    """Sum every rank's contributions and keep the own slot, in two hops; as a job.

    1. Encode W slots in the format for within the host; send each neighbour on the host the H slots
       of its place.
    2. Decode and sum the R contributions of the host in fp32, in rank order: H partial slots. Add
       those that earlier contributions left, if any.
    3. Encode them in the format for across hosts; send each to the rank that owns it. What both
       hops rotate is still rotated, and is not rotated again.
    4. Decode and sum the H partial slots in fp32, in host order, and apply what ``op`` asks for.

    Bytes sent per rank = (R - 1) * H slots within the host, (H - 1) slots across hosts, each in the
    format of its hop (arXiv 2306.10209, section 3.3).

    Args:
        output: fp32 vector of ``across.layout.slot_numel`` elements; overwritten.
        contributions: vector of W slots, fp32, bf16 or fp16.
        within: the first hop.
        across: the second hop: its peers and a layout with its formats; the same pieces.
        key: of the random numbers; the rank is part of it.
        op: SUM, AVG or PREMUL_SUM.
    """
    num_hosts, per_host = across.peers.size, within.traffic.peers.size
    place, slot_numel = within.traffic.peers.rank, across.layout.slot_numel
    partial = torch.empty((num_hosts, slot_numel), dtype=torch.float32, device=contributions.device)
    near, far = within.traffic.layout, across.layout
    is_plain = within.held is None and across.feedback is NO_FEEDBACK
    stays_rotated = bool(near.rotated) and near.rotated == far.rotated and is_plain
    read_as = near.unrotated if stays_rotated else near
    first = _first_hop(partial, contributions, within, key, read_as=read_as, is_last=False)
    del contributions  # a job may wait long for its turn on the wire
    sent_within = yield from first
    if within.held is not None:
        partial.add_(within.held)
    second = _Hop(
        [[(h * per_host + place, partial[h])] for h in range(num_hosts)],
        [(across.peers.rank * per_host + place, output)],
        replace(across, layout=far.unrotated) if stays_rotated else across,
        key.fold(2),
        "across",
        read_as=far,
    )
    yield Transfer(second.run)
    second.sum_up()
    finish_sum(output, op, num_hosts * per_host)
    across.ledger.record(
        "reduce_scatter",
        within_bytes=sent_within,
        across_bytes=second.sent_bytes,
        bf16_bytes=(num_hosts * per_host - 1) * slot_numel * BF16_BYTES,
        formats=within.traffic.layout.formats | across.layout.formats,
    )


def _first_hop(
    partial: Tensor,
    contributions: Tensor,
    hop: FirstHop,
    key: Key,
    *,
    read_as: ShardLayout,
    is_last: bool,
) -> Generator[Transfer, None, int]:
    """Sum the host's contributions to the slots of the own place; returns the bytes sent."""
    num_hosts, peers = len(partial), hop.traffic.peers
    slots = contributions.view(num_hosts, peers.size, -1)
    exchanged = _Hop(
        [[(h * peers.size + p, slots[h, p]) for h in range(num_hosts)] for p in range(peers.size)],
        [(h * peers.size + peers.rank, partial[h]) for h in range(num_hosts)],
        hop.traffic,
        key.fold(1),
        "within",
        read_as=read_as,
    )
    del slots, contributions  # a job may wait long for its turn on the wire
    yield Transfer(exchanged.run, is_last=is_last)
    exchanged.sum_up()
    return exchanged.sent_bytes


class _Hop:
    """One hop: every peer is sent its slots, and what the peers send is summed.

    Args:
        outgoing: for every peer, the slots it gets: their numbers and values. Encoded at once.
        sums: the slots that this rank collects: their numbers, and where the sums go.
        traffic: those who exchange, and how slots are packed.
        key: of the random numbers.
        name: of the hop, which has residuals of its own.
        read_as: how what arrives is decoded: as packed, or without rotating back.
    """

    def __init__(
        self,
        outgoing: list[list[tuple[int, Tensor]]],
        sums: list[tuple[int, Tensor]],
        traffic: Traffic,
        key: Key,
        name: str,
        *,
        read_as: ShardLayout,
    ) -> None:
        self._peers, self._packings, self._sums = traffic.peers, traffic.layout.packings, sums
        self._read_as = read_as.packings
        self._feedback = traffic.feedback
        self._outgoing = [self._encode(parts, key, name) for parts in outgoing]
        self._incoming = [torch.empty_like(self._outgoing[self._peers.rank]) for _ in outgoing]

    def _encode(self, parts: list[tuple[int, Tensor]], key: Key, name: str) -> Tensor:
        sizes = [self._packings[slot].wire_bytes for slot, _ in parts]
        payload = torch.empty(sum(sizes), dtype=torch.uint8, device=parts[0][1].device)
        for (slot, values), piece in zip(parts, torch.split(payload, sizes), strict=True):
            packing, part = self._packings[slot], f"{name} to {slot}"
            self._feedback.encode_into(packing, values, piece, key.fold(slot), part)
        return payload

    @property
    def sent_bytes(self) -> int:
        """Bytes sent to the other peers."""
        return sum(
            len(payload) for peer, payload in enumerate(self._outgoing) if peer != self._peers.rank
        )

    def run(self, channel: int) -> None:
        """Exchange the payloads."""
        exchange(self._outgoing, self._incoming, self._peers, channel)

    def sum_up(self) -> None:
        """Decode what arrived and sum it in fp32, in the order of the peers."""
        sizes = [self._packings[slot].wire_bytes for slot, _ in self._sums]
        pieces = [torch.split(payload, sizes) for payload in self._incoming]
        for index, (slot, total) in enumerate(self._sums):
            arrived = [parts[index] for parts in pieces]
            self._read_as[slot].decode_sum_into(arrived, total)
