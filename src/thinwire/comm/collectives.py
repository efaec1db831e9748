"""Compressed collectives on one level: payloads between ranks, values at both ends.

Shared laws. The sum is in fp32 and in rank order. Every rank decodes the same payloads, its own
too, so that all ranks hold the same bits. A payload lives only as long as the call.

What may run beside compute is a job (:mod:`thinwire.comm.sender`); ``run_now`` runs it on the spot.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.comm.exchange import exchange, gather, gather_rows
from thinwire.comm.layout import ShardLayout
from thinwire.comm.ledger import BF16_BYTES, Ledger
from thinwire.comm.reduction import ReduceOp, finish_sum
from thinwire.comm.sender import Job, Transfer
from thinwire.comm.topology import Peers
from thinwire.errors import StateError
from thinwire.wire.feedback import NO_FEEDBACK, Feedback
from thinwire.wire.key import Key

__all__ = ["Traffic", "all_gather", "all_reduce", "reduce_scatter"]


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a collective needs to know besides its tensors.

    Attributes:
        layout: the parameters in the buffer.
        peers: the ranks that take part.
        ledger: where sent bytes are recorded.
        feedback: encodes what is to be summed; a gather of weights has nothing to feed back.
        stands_for: what the ledger says of the payload, where the buffer does not hold the
            parameters themselves but, for example, factors of them; ``None``: ``layout``.
    """

    layout: ShardLayout
    peers: Peers
    ledger: Ledger
    feedback: Feedback = NO_FEEDBACK
    stands_for: ShardLayout | None = None

    def record_sends(self, collective: str, outgoing: Sequence[Tensor]) -> None:
        """Enter in the ledger that every one of the peers was sent its payload."""
        peers, shown = self.peers, self.stands_for or self.layout
        sent = {True: 0, False: 0}
        for receiver, payload in enumerate(outgoing):
            if receiver != peers.rank:
                sent[peers.is_across(receiver)] += len(payload)
        self.ledger.record(
            collective,
            within_bytes=sent[False],
            across_bytes=sent[True],
            bf16_bytes=(peers.size - 1) * shown.slot_numel * BF16_BYTES,
            formats=shown.formats,
        )

    def check(self, slot: Tensor, whole: Tensor) -> None:
        """Raise if a slot and a whole buffer are not of the layout's size."""
        slot_numel, size = self.layout.slot_numel, self.peers.size
        if slot.numel() != slot_numel or whole.numel() != slot_numel * size:
            raise StateError(
                f"the buffers hold {slot.numel()} and {whole.numel()} elements, the compressed "
                f"layout {slot_numel} and {slot_numel * size}: parameters were added, removed or "
                "resized after compression was attached; attach it again"
            )


def all_gather(output: Tensor, shard: Tensor, traffic: Traffic, key: Key) -> None:
    """Gather every rank's shard, encoded on the way.

    1. Encode the own shard into a payload.
    2. All-gather the payloads: in rounds or round a ring, see
       :func:`thinwire.comm.exchange.gather_rows`.
    3. Decode all W payloads, the own one too, into their slots.

    Bytes sent per rank = (W - 1) * ``layout.slot_bytes``; in a ring all to the successor.

    Args:
        output: vector of W * ``layout.slot_numel`` elements, fp32, bf16 or fp16; overwritten.
        shard: this rank's slot, of the same dtype. May be a view into ``output``.
        traffic: layout, peers and ledger.
        key: of the random numbers; the rank is part of it.
    """
    traffic.check(shard, output)
    layout, peers = traffic.layout, traffic.peers
    payload = torch.zeros(layout.slot_bytes, dtype=torch.uint8, device=shard.device)
    own = layout.packings[peers.rank]
    own.encode_into(shard, payload[: own.wire_bytes], key)
    gathered = _gather_payloads(payload, traffic, "all_gather")
    for packing, received, slot in zip(
        layout.packings, gathered, output.view(peers.size, -1), strict=True
    ):
        packing.decode_into(received[: packing.wire_bytes], slot)


def reduce_scatter(
    output: Tensor, contributions: Tensor, traffic: Traffic, key: Key, op: ReduceOp
) -> Job:
    """Sum every rank's contributions and keep the own slot, encoded on the way; as a job.

    1. Encode W slots of the own contributions, one payload for each rank.
    2. Exchange the payloads (all-to-all).
    3. Decode the W received payloads and sum them in fp32, in rank order.
    4. Apply what ``op`` asks for (AVG: divide by W).

    Bytes sent per rank = the sum of ``layout.packings[p].wire_bytes`` over all other ranks p.

    Args:
        output: vector of ``layout.slot_numel`` elements; overwritten.
        contributions: vector of W * ``layout.slot_numel`` elements, fp32, bf16 or fp16.
        traffic: layout, peers and ledger.
        key: of the random numbers; the rank is part of it.
        op: SUM, AVG or PREMUL_SUM.
    """
    traffic.check(output, contributions)
    layout, peers = traffic.layout, traffic.peers
    outgoing = _encode_slots(contributions, traffic, key)
    del contributions  # a job may wait long for its turn on the wire
    own = layout.packings[peers.rank]
    incoming = [torch.empty_like(outgoing[peers.rank]) for _ in range(peers.size)]
    yield Transfer(functools.partial(exchange, outgoing, incoming, peers))
    traffic.record_sends("reduce_scatter", outgoing)
    del outgoing
    in_fp32 = output.dtype == torch.float32
    total = output if in_fp32 else torch.empty_like(output, dtype=torch.float32)
    own.decode_sum_into(incoming, total)
    finish_sum(total, op, peers.size)
    if not in_fp32:
        output.copy_(total)


def all_reduce(values: Tensor, traffic: Traffic, key: Key, op: ReduceOp) -> Job:
    """Sum every rank's values into all ranks, encoded on the way there and back; as a job.

    1. Reduce-scatter as in :func:`reduce_scatter`: the own slot of the result, in fp32.
    2. Encode the own slot.
    3. Gather the payloads of all slots, in rounds.
    4. Decode all of them, the own one too: every rank ends with the same bits.

    Bytes sent per rank = the payloads of the W - 1 other slots, and W - 1 times that of the own.

    Args:
        values: vector of W * ``layout.slot_numel`` elements, fp32, bf16 or fp16; overwritten.
        traffic: layout, peers and ledger.
        key: of the random numbers; the rank is part of it.
        op: SUM, AVG or PREMUL_SUM.
    """
    layout, peers = traffic.layout, traffic.peers
    total = torch.empty(layout.slot_numel, dtype=torch.float32, device=values.device)
    for transfer in reduce_scatter(total, values, traffic, key.fold(0), op):
        yield dataclasses.replace(transfer, is_last=False)
    gathered = [_empty(packing.wire_bytes, values) for packing in layout.packings]
    payload = _empty(layout.packings[peers.rank].wire_bytes, values)
    own = layout.packings[peers.rank]
    traffic.feedback.encode_into(own, total, payload, key.fold(1), "result")
    yield Transfer(functools.partial(gather, payload, gathered, peers))
    traffic.record_sends("all_gather", [payload] * peers.size)
    slots = values.view(peers.size, -1)
    for packing, received, slot in zip(layout.packings, gathered, slots, strict=True):
        packing.decode_into(received, slot)


def _gather_payloads(payload: Tensor, traffic: Traffic, collective: str) -> Tensor:
    """The payloads of all ranks, as a matrix of W rows."""
    layout, peers = traffic.layout, traffic.peers
    gathered = torch.empty(
        (peers.size, layout.slot_bytes), dtype=torch.uint8, device=payload.device
    )
    gather_rows(payload, gathered, peers)
    sent_bytes = (peers.size - 1) * layout.slot_bytes
    # in rounds all the others are on other hosts, or the one other is the successor
    across = peers.is_across(peers.successor)
    traffic.ledger.record(
        collective,
        within_bytes=0 if across else sent_bytes,
        across_bytes=sent_bytes if across else 0,
        bf16_bytes=(peers.size - 1) * layout.slot_numel * BF16_BYTES,
        formats=layout.formats,
    )
    return gathered


def _encode_slots(contributions: Tensor, traffic: Traffic, key: Key) -> list[Tensor]:
    """One payload for each rank."""
    layout, feedback = traffic.layout, traffic.feedback
    payloads = []
    slots = contributions.view(layout.world_size, -1)
    for receiver, (packing, slot) in enumerate(zip(layout.packings, slots, strict=True)):
        payload = _empty(packing.wire_bytes, slot)
        feedback.encode_into(packing, slot, payload, key.fold(receiver), f"to {receiver}")
        payloads.append(payload)
    return payloads


def _empty(num_bytes: int, like: Tensor) -> Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8, device=like.device)
