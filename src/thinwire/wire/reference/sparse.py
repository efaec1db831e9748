"""The family ``topk``: the largest magnitudes of a tensor, exactly, and where they are.

Of equal magnitudes the first ones are kept, so that the choice is the same everywhere. NaN and Inf
count as larger than every number: they travel first, and the receiver sees them where they were.
Biased, and meant to be used with error feedback (Aji and Heafield, arXiv 1704.05021).

A tensor is looked at a piece at a time: once per digit of the smallest magnitude that is kept, and
once to write what reaches it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from thinwire.errors import InputError
from thinwire.formats import SparseLayout, WireFormat
from thinwire.layouts import STRETCH_ELEMENTS
from thinwire.wire.codec import Codec
from thinwire.wire.key import Key
from thinwire.wire.reference.narrow import narrow

__all__ = ["SparseReference", "damaged"]

_MAGNITUDE = 0x7FFFFFFF
_STRETCHES_PER_PIECE = 16
_PIECE_ELEMENTS = _STRETCHES_PER_PIECE * STRETCH_ELEMENTS

# The 31 bits of a magnitude as three digits: (lowest bit, bits).
_DIGITS = ((20, 11), (10, 10), (0, 10))


class SparseReference(Codec):
    """Values in float32, positions as a bit mask or a list, whichever is smaller."""

    def _encode(self, x: Tensor, out: Tensor, key: Key) -> None:
        del key
        layout = self.format.sparse_layout(x.numel())
        threshold, num_ties = _threshold_of(x, layout.num_kept)
        out[layout.positions_at :].zero_()
        numbers, part = out[: layout.positions_at].view(torch.float32), _positions_of(out, layout)
        write = _write_mask if layout.is_mask else _write_list
        kept = 0
        for piece, values in enumerate(_pieces(x)):
            magnitudes = _magnitudes(values)
            chosen, ties = magnitudes > threshold, magnitudes == threshold
            first_ties = ties.nonzero().view(-1)[:num_ties]
            num_ties -= first_ties.numel()
            chosen[first_ties] = True
            positions = chosen.nonzero().view(-1)
            numbers[kept : kept + positions.numel()] = values[positions]
            write(part, layout, piece, kept, positions)
            kept += positions.numel()

    def _decode(self, payload: Tensor, out: Tensor) -> None:
        out.zero_()
        for place, positions, values in self._kept(payload, out):
            place[positions] = narrow(values, out.dtype)

    def _decode_sum(self, payloads: Sequence[Tensor], out: Tensor) -> None:
        out.zero_()
        for payload in payloads:
            for place, positions, values in self._kept(payload, out):
                place[positions] += values  # no position occurs twice in one payload

    def _kept(self, payload: Tensor, out: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """For each piece of ``out``: the piece, positions in it, int64, and the values there."""
        layout = self.format.sparse_layout(out.numel())
        numbers = payload[: layout.positions_at].view(torch.float32)
        part = _positions_of(payload, layout)
        read = _read_mask if layout.is_mask else _read_list
        kept = 0
        for piece, place in enumerate(torch.split(out, _PIECE_ELEMENTS)):
            positions = read(part, layout, piece, kept)
            values = numbers[kept : kept + positions.numel()]
            in_order = bool((positions.diff() > 0).all())
            if not in_order or values.numel() < positions.numel():
                raise damaged(self.format)
            if positions.numel() and positions[-1] >= place.numel():
                raise damaged(self.format)
            kept += positions.numel()
            yield place, positions, values
        if kept < layout.num_kept:
            raise damaged(self.format)


def damaged(fmt: WireFormat) -> InputError:
    """The error of a payload whose positions no encoder wrote."""
    return InputError(
        f"a payload in {fmt} is damaged: its positions do not ascend, or are not as many as its "
        "values; encode the tensor again"
    )


def _pieces(x: Tensor) -> Iterator[Tensor]:
    """The values of ``x`` in float32, every NaN the same, a piece at a time."""
    for piece in torch.split(x, _PIECE_ELEMENTS):
        values = piece.float()
        yield values.masked_fill(values.isnan(), math.nan)


def _magnitudes(values: Tensor) -> Tensor:
    """Float bits without sign, int32: ordered like the magnitudes."""
    return values.view(torch.int32) & _MAGNITUDE


def _threshold_of(x: Tensor, num_kept: int) -> tuple[int, int]:
    """The smallest magnitude that is kept, as float bits, and how many equal to it are."""
    low, left = 0, num_kept
    for shift, bits in _DIGITS:
        counts = torch.zeros(1 << bits, dtype=torch.int64, device=x.device)
        for values in _pieces(x):
            digits = _magnitudes(values) - low >> shift
            digits = digits[(digits >= 0) & (digits < counts.numel())]
            counts += digits.bincount(minlength=counts.numel())
        from_top = counts.flip(0).cumsum(0).tolist()
        steps = next(steps for steps, count in enumerate(from_top) if count >= left)
        left -= from_top[steps - 1] if steps else 0
        low += counts.numel() - 1 - steps << shift
    return low, left


def _positions_of(payload: Tensor, layout: SparseLayout) -> Tensor:
    return payload[layout.positions_at : layout.positions_end]


def _write_mask(
    part: Tensor, layout: SparseLayout, piece: int, kept: int, positions: Tensor
) -> None:
    del layout, kept
    mask = _mask_of(part, piece)
    marks = torch.zeros(mask.numel() * 8, dtype=torch.uint8, device=part.device)
    marks[positions] = 1
    mask.copy_((marks.view(-1, 8) << _bits_of(part)).sum(dim=1))


def _read_mask(part: Tensor, layout: SparseLayout, piece: int, kept: int) -> Tensor:
    del layout, kept
    marks = _mask_of(part, piece).unsqueeze(1) >> _bits_of(part) & 1
    return marks.view(-1).nonzero().view(-1)


def _mask_of(part: Tensor, piece: int) -> Tensor:
    return part[piece * _PIECE_ELEMENTS // 8 : (piece + 1) * _PIECE_ELEMENTS // 8]


def _bits_of(mask: Tensor) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=mask.device)


def _write_list(
    part: Tensor, layout: SparseLayout, piece: int, kept: int, positions: Tensor
) -> None:
    counts, offsets = _list_of(part, layout, piece)
    stretches = positions // STRETCH_ELEMENTS
    counts.copy_(stretches.bincount(minlength=counts.numel()))
    offsets[kept : kept + positions.numel()] = (positions % STRETCH_ELEMENTS).to(torch.int16)


def _read_list(part: Tensor, layout: SparseLayout, piece: int, kept: int) -> Tensor:
    counts, offsets = _list_of(part, layout, piece)
    # A damaged count is read as one too many: the caller then misses values.
    too_many = offsets.numel() + 1
    counts = counts.long().clamp(max=too_many).masked_fill(counts < 0, too_many)
    stretches = torch.arange(counts.numel(), device=part.device).repeat_interleave(counts)
    some = offsets[kept : kept + stretches.numel()].long() & STRETCH_ELEMENTS - 1
    padded = torch.nn.functional.pad(some, (0, stretches.numel() - some.numel()))
    return stretches * STRETCH_ELEMENTS + padded


def _list_of(part: Tensor, layout: SparseLayout, piece: int) -> tuple[Tensor, Tensor]:
    """The counts of a piece, int32, and all offsets, int16 that stand for 0 to 65535."""
    counts_bytes = 4 * layout.num_stretches
    counts = part[:counts_bytes].view(torch.int32)
    first = piece * _STRETCHES_PER_PIECE
    return counts[first : first + _STRETCHES_PER_PIECE], part[counts_bytes:].view(torch.int16)
