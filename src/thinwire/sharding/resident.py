"""A unit's resident replica: a copy of its weights that deltas keep up to date.

    replica, this rank's rows            deltas, one payload per owner
    +-----------+-----------+-----       decode and add to the row of the owner, on every rank
    | slot of 0 | slot of 1 | ...   <--  that keeps that row, the owner too: equal bits everywhere
    +-----------+-----------+-----

The owner of a slot encodes the difference between its fp32 shard and its own row of the replica.
What the codec lost is part of the next difference, so it does not build up (SDP4Bit,
arXiv 2410.15526, section 3.1). Parameters that travel exactly are sent themselves: their part of
the row is cleared first, and zero plus a value is the value.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from thinwire.comm.exchange import gather
from thinwire.comm.hierarchy import TwoLevels
from thinwire.comm.layout import ShardLayout
from thinwire.comm.ledger import BF16_BYTES, Ledger
from thinwire.comm.sender import Job, Transfer
from thinwire.comm.topology import Peers
from thinwire.errors import ConfigError, StateError
from thinwire.formats import parse_format
from thinwire.recipe import Recipe
from thinwire.rules import FormatRule
from thinwire.sharding.units import Unit, cast_format
from thinwire.wire.key import Key

__all__ = ["Change", "Resident"]

FP32 = parse_format("fp32")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

# A difference of more than this share of the weights' own norm is no step of an optimizer but
# another set of weights. Four bits of it would be far off, so the weights themselves are sent.
# Adam moves weights by under 10 % a step even at the start; loaded weights differ by over 100 %.
LARGE_CHANGE = 0.25


class Change:
    """What happened to a shard since the replica was brought up to date; the largest counts.

    ``RESTORE``: the owner's row was loaded from a checkpoint, and the other ranks' copies of it are
    not there yet.
    """

    NONE, DELTA, REFRESH, RESTORE = 0, 1, 2, 3


class Resident:
    """The replica of one unit, as far as this rank keeps it.

    Args:
        unit: whose weights.
        recipe: the replica's format and that of the deltas.
        peers: the ranks that share the unit's parameters.
        ledger: where sent bytes are recorded.
    """

    def __init__(self, unit: Unit, recipe: Recipe, peers: Peers, ledger: Ledger) -> None:
        fmt = recipe.resident_format
        assert fmt is not None  # the caller asked for a resident replica
        odd = [m.name for m in unit.members if not m.dtype.is_floating_point]
        if odd:
            raise ConfigError(
                f"recipe {recipe.name}: a resident replica holds floating point parameters, but "
                f"{odd[0]} is not; pass it to fully_shard as ignored, or leave replica out"
            )
        self.unit = unit
        self._is_split = recipe.replica is not None and recipe.replica.startswith("host")
        self._levels = TwoLevels.of(peers)
        self._ledger = ledger
        self._delta_layout = unit.layout(unit.members, recipe.weight_rule, FP32)
        self._full_layout = unit.layout(unit.members, FormatRule(fmt), fmt)
        kept = self._levels.across.size if self._is_split else peers.size
        device = unit.members[0].parameter.device
        self._rows = torch.zeros((kept, unit.slot_numel), dtype=DTYPES[str(fmt)], device=device)
        self._exact = _exact_ranges(unit)
        self._sent: Tensor | None = None  # the shard that the replica was last told of
        self._is_restored = False

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the replica takes on this rank, with the shard it was told of."""
        return self._rows.nbytes + 4 * self.unit.slot_numel

    @property
    def _own_row(self) -> Tensor:
        levels = self._levels
        return self._rows[levels.across.rank if self._is_split else levels.peers.rank]

    def examine(self) -> int:
        """Compare the shard with the replica and remember the difference until it is sent.

        Returns:
            A value of :class:`Change`, the same for equal bits: no write to a weight goes unseen,
            whether it came from an optimizer, a checkpoint or ``parameter.data``.
        """
        if self._is_restored:
            return Change.RESTORE
        shard = self._read_shard()
        if shard is None:
            return Change.NONE  # whole at the moment: FSDP2 will not gather it
        is_first = self._sent is None
        if self._sent is not None and _same_bits(shard, self._sent):
            return Change.NONE
        self._sent = shard
        # written so that a NaN anywhere asks for a refresh too
        is_small = bool((shard - self._own_row).norm() <= LARGE_CHANGE * shard.norm())
        return Change.DELTA if is_small and not is_first else Change.REFRESH

    def update(self, change: int, key: Key) -> Job:
        """Send the own difference, receive the others', bring all rows up to date; as a job.

        1. Encode the own delta, or in the replica's format the own shard (``Change.REFRESH``) or
           the own row (``Change.RESTORE``).
        2. Across hosts: exchange payloads with the ranks that have the same place on their host.
        3. A replica per rank: pass what arrived on to the ranks of this host.
        4. Decode every payload and add it to its row, or write it there.

        Bytes sent per rank = (H - 1) payloads across hosts and, for a replica per rank,
        (R - 1) * H payloads within the host.

        Args:
            change: the largest change of any rank.
            key: of the random numbers.
        """
        layout = self._delta_layout if change == Change.DELTA else self._full_layout
        sizes = [packing.wire_bytes for packing in layout.packings]
        levels, per_host = self._levels, self._levels.within.size
        payload = self._encode(change, layout, key)
        payloads = self._empty(sizes[levels.within.rank :: per_host])
        passes_on = not self._is_split and per_host > 1
        yield Transfer(
            functools.partial(gather, payload, payloads, levels.across), is_last=not passes_on
        )
        sent_within = 0
        if passes_on:
            bundle = torch.cat(payloads)
            bundles = self._empty([sum(sizes[place::per_host]) for place in range(per_host)])
            yield Transfer(functools.partial(gather, bundle, bundles, levels.within))
            sent_within = (per_host - 1) * len(bundle)
            parts = [torch.split(b, sizes[place::per_host]) for place, b in enumerate(bundles)]
            payloads = [parts[slot % per_host][slot // per_host] for slot in self._slots()]
        self._ledger.record(
            "all_gather",
            within_bytes=sent_within,
            across_bytes=(levels.across.size - 1) * len(payload),
            bf16_bytes=(levels.peers.size - 1) * layout.slot_numel * BF16_BYTES,
            formats=layout.formats,
        )
        self._apply(change, layout, payloads)

    def _apply(self, change: int, layout: ShardLayout, payloads: list[Tensor]) -> None:
        """Decode every payload and add it to its row, or write it there."""
        scratch = torch.empty(self.unit.slot_numel, dtype=torch.float32, device=self._rows.device)
        for slot, row, payload in zip(self._slots(), self._rows, payloads, strict=True):
            if change != Change.DELTA:
                layout.packings[slot].decode_into(payload, row)
                continue
            layout.packings[slot].decode_into(payload, scratch)
            for start, stop in self._exact:
                row[start:stop].zero_()
            torch.add(row, scratch, out=row)

    def state(self) -> dict[str, Tensor]:
        """The own row, and the shard that the replica was last told of; nothing before that."""
        return {} if self._sent is None else {"row": self._own_row, "sent": self._sent}

    def check(self, state: Mapping[str, Tensor]) -> None:
        """Raise unless a state is one of such a replica.

        Raises:
            StateError: the tensors are not those of such a replica.
        """
        row, sent = state.get("row"), state.get("sent")
        if row is None and sent is None:
            return  # saved before the replica was filled, which the next forward pass does
        if row is None or sent is None:
            raise StateError(
                f"module {self.unit.name or '(root)'} needs both a replica's row and what it was "
                "last told of, and the state holds one of them: pass what "
                "thinwire.compression_state returned"
            )
        dtypes, expected = (row.dtype, sent.dtype), (self._rows.dtype, torch.float32)
        if dtypes != expected or not row.shape == sent.shape == self._own_row.shape:
            raise StateError(
                f"module {self.unit.name or '(root)'} needs a replica's row of "
                f"{self.unit.slot_numel} elements in {self._rows.dtype}, and the state holds "
                f"{row.numel()} in {row.dtype}: load it into the model and recipe that it was "
                "saved from"
            )

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what :meth:`state` returned.

        Raises:
            StateError: see :meth:`check`.
        """
        self.check(state)
        if not state:
            self._sent, self._is_restored = None, False
            return
        self._own_row.copy_(state["row"])
        self._sent = state["sent"].clone()
        self._is_restored = True

    def read_into(self, output: Tensor) -> None:
        """Write all slots of the replica into the buffer that FSDP2 computes from.

        A replica split over a host is gathered from the ranks of the host.
        """
        levels = self._levels
        if not self._is_split or levels.within.size == 1:
            output.view(levels.peers.size, -1).copy_(self._rows)
            return
        gathered = torch.empty(
            (levels.within.size, *self._rows.shape), dtype=self._rows.dtype, device=output.device
        )
        own = self._rows.view(-1).view(torch.uint8)
        parts = [part.view(-1).view(torch.uint8) for part in gathered]
        gather(own, parts, levels.within)
        by_host = output.view(levels.across.size, levels.within.size, -1)
        by_host.copy_(gathered.transpose(0, 1))
        self._ledger.record(
            "all_gather",
            within_bytes=(levels.within.size - 1) * len(own),
            bf16_bytes=(levels.within.size - 1) * self._rows.numel() * BF16_BYTES,
            formats=frozenset({str(cast_format(self._rows.dtype))}),
        )

    def _slots(self) -> range:
        """The slots whose rows this rank keeps."""
        levels = self._levels
        if self._is_split:
            return range(levels.within.rank, levels.peers.size, levels.within.size)
        return range(levels.peers.size)

    def _encode(self, change: int, layout: ShardLayout, key: Key) -> Tensor:
        packing = layout.packings[self._levels.peers.rank]
        payload = torch.empty(packing.wire_bytes, dtype=torch.uint8, device=self._rows.device)
        if change == Change.RESTORE:
            self._is_restored = False
            packing.encode_into(self._own_row.clone(), payload, key)
            return payload
        # a rank whose shard did not change has something to refine all the same
        shard = self._sent
        assert shard is not None  # examined before every update
        values = shard
        if change == Change.DELTA:
            values = shard - self._own_row
            for start, stop in self._exact:
                values[start:stop] = shard[start:stop]
        packing.encode_into(values, payload, key)
        return payload

    def _empty(self, sizes: list[int]) -> list[Tensor]:
        device = self._rows.device
        return [torch.empty(size, dtype=torch.uint8, device=device) for size in sizes]

    def _read_shard(self) -> Tensor | None:
        """The own slot in fp32, from the sharded parameters; ``None`` while one is whole."""
        parameters = [member.sharded for member in self.unit.members]
        shard = torch.zeros(self.unit.slot_numel, dtype=torch.float32, device=self._rows.device)
        start = 0
        for member, parameter in zip(self.unit.members, parameters, strict=True):
            if parameter is None:
                return None
            local = cast(DTensor, parameter.detach()).to_local()
            shard[start : start + local.numel()].copy_(local.reshape(-1))
            start += member.piece_numel
        return shard


def _exact_ranges(unit: Unit) -> list[tuple[int, int]]:
    """Where, in a slot, parameters lie that travel exactly; neighbours are merged."""
    ranges: list[tuple[int, int]] = []
    start = 0
    for member in unit.members:
        stop = start + member.piece_numel
        if unit.is_exact(member):
            if ranges and ranges[-1][1] == start:
                ranges[-1] = (ranges[-1][0], stop)
            else:
                ranges.append((start, stop))
        start = stop
    return ranges


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """Equality of every bit: a NaN is the same as itself, a zero is not minus zero."""
    return torch.equal(one.view(torch.int32), other.view(torch.int32))
