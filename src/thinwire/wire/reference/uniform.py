"""The family ``int``: uniform levels with a scale per block.

Symmetric        x^ = scale * q              q = round(x / scale)             |q| <= 2**(b-1) - 1
``+shift``       x^ = scale * (q + u)        q = round(x / scale - u)         QSDP, section 4
``+asym``        x^ = zero + scale * q       q = round((x - zero) / scale)    0 <= q <= 2**b - 1
``+levels``      x^ = scale * level[q]       q = index of the nearest level   QSDP, algorithm 1

``+stochastic`` adds a random number in (-1/2, 1/2) before it rounds (QSGD, section 3): the
expectation of x^ is x. ``+clip`` takes the scale from a percentile instead of the extremes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from thinwire.formats import WireFormat
from thinwire.wire.key import Key
from thinwire.wire.levels import Levels, draw_shift, learn_levels, nearest_level
from thinwire.wire.reference.blocked import BlockedReference, EncodedRows, RandomRows
from thinwire.wire.reference.extremes import magnitudes_of, range_of
from thinwire.wire.scales import FLOAT32_MAX, divided, inverse_of

__all__ = [
    "AffineReference",
    "LearnedReference",
    "ShiftedReference",
    "SymmetricReference",
    "uniform_reference",
]


def uniform_reference(fmt: WireFormat) -> BlockedReference:
    """The reference codec of a format of family ``int``."""
    if "shift" in fmt.options:
        return ShiftedReference(fmt)
    if "levels" in fmt.options:
        return LearnedReference(fmt)
    return AffineReference(fmt) if "asym" in fmt.options else SymmetricReference(fmt)


class _UniformReference(BlockedReference):
    """What the three lattices share."""

    def __init__(self, fmt: WireFormat) -> None:
        super().__init__(fmt)
        self._levels = Levels.of(fmt)

    def _symmetric_scales(self, values: Tensor) -> Tensor:
        magnitudes = magnitudes_of(values, self.format)
        scales = divided(magnitudes, self._levels.span)
        return self._levels.rule.round(scales, magnitudes.isfinite())

    def _round(self, steps: Tensor, random: RandomRows) -> Tensor:
        if "stochastic" in self.format.options:
            steps = steps + random.centred(steps)
        return steps.round()

    def _stored(self, codes: Tensor, scales: Tensor) -> Tensor:
        """Codes as unsigned bytes; all zero in a block whose scale is NaN."""
        stored = (codes + self._levels.offset).masked_fill(scales.isnan().unsqueeze(1), 0.0)
        return stored.to(torch.uint8)


class SymmetricReference(_UniformReference):
    """Levels on both sides of zero."""

    def _encode_rows(self, values: Tensor, random: RandomRows, head: Tensor) -> EncodedRows:
        del head
        levels = self._levels
        scales = self._symmetric_scales(values)
        steps = values * inverse_of(scales).unsqueeze(1)
        codes = self._round(steps, random).clamp(-levels.top, levels.top)
        return EncodedRows(codes=self._stored(codes, scales), scales=scales)

    def _decode_rows(self, rows: EncodedRows, head: Tensor) -> Tensor:
        del head
        return (rows.codes.float() - self._levels.offset) * rows.scales.unsqueeze(1)


class ShiftedReference(_UniformReference):
    """Levels on both sides of a point drawn anew for every tensor."""

    def _head(self, x: Tensor, key: Key) -> Tensor:
        shift = torch.tensor([draw_shift(key, self.format.bits)], device=x.device)
        return shift.view(torch.uint8)

    def _encode_rows(self, values: Tensor, random: RandomRows, head: Tensor) -> EncodedRows:
        del random
        levels = self._levels
        scales = self._symmetric_scales(values)
        steps = values * inverse_of(scales).unsqueeze(1) - head.view(torch.float32)
        codes = steps.round().clamp(-levels.top, levels.top)
        return EncodedRows(codes=self._stored(codes, scales), scales=scales)

    def _decode_rows(self, rows: EncodedRows, head: Tensor) -> Tensor:
        steps = rows.codes.float() - self._levels.offset + head.view(torch.float32)
        return steps * rows.scales.unsqueeze(1)


class LearnedReference(_UniformReference):
    """The best levels for this tensor, out of the 255 of int8.

    Differs from QSDP's algorithm in three ways: the squared error is minimised exactly instead of
    by gradient steps, anew for every tensor instead of once, and the levels travel along.
    """

    def _head(self, x: Tensor, key: Key) -> Tensor:
        del key
        counts = torch.zeros(256, dtype=torch.int64)
        for values in self._rows_of(x):
            points, scales = self._points(values)
            counts += points[~scales.isnan()].view(-1).bincount(minlength=256).cpu()
        return learn_levels(counts, self.format.bits).view(torch.uint8).to(x.device)

    def _encode_rows(self, values: Tensor, random: RandomRows, head: Tensor) -> EncodedRows:
        del random
        points, scales = self._points(values)
        codes = nearest_level(head.view(torch.int8))[points]
        codes = codes.masked_fill(scales.isnan().unsqueeze(1), 0)
        return EncodedRows(codes=codes, scales=scales)

    def _decode_rows(self, rows: EncodedRows, head: Tensor) -> Tensor:
        return head.view(torch.int8).float()[rows.codes.int()] * rows.scales.unsqueeze(1)

    def _points(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """The nearest of the 255 points of each value, 1 to 255, and the scales of the rows."""
        scales = self._symmetric_scales(values)
        steps = (values * inverse_of(scales).unsqueeze(1)).round()
        points = steps.clamp(-self._levels.top, self._levels.top) + self._levels.offset
        return points.nan_to_num().int(), scales


class AffineReference(_UniformReference):
    """Levels from the block's smallest value up.

    All sums are formed at half size and doubled at the end: a block may reach from the most
    negative float32 to the most positive one, and its range would overflow.
    """

    def _encode_rows(self, values: Tensor, random: RandomRows, head: Tensor) -> EncodedRows:
        del head
        levels = self._levels
        finite = values.isfinite().all(dim=1)
        lowest, highest = range_of(values, self.format)
        zeros = self._round_zero(lowest + 0.0).masked_fill(~finite, 0.0)
        half_range = highest * 0.5 - zeros * 0.5
        scales = levels.rule.round(divided(half_range, levels.span) * 2.0, finite)
        per_half_step = inverse_of(scales * 0.5).unsqueeze(1)
        steps = (values * 0.5 - zeros.unsqueeze(1) * 0.5) * per_half_step
        codes = self._round(steps, random).clamp(0, levels.top)
        return EncodedRows(codes=self._stored(codes, scales), scales=scales, zeros=zeros)

    def _decode_rows(self, rows: EncodedRows, head: Tensor) -> Tensor:
        del head
        assert rows.zeros is not None
        above = rows.codes.float() * (rows.scales * 0.5).unsqueeze(1)
        return ((rows.zeros * 0.5).unsqueeze(1) + above).mul(2.0).clamp(max=FLOAT32_MAX)

    def _round_zero(self, lowest: Tensor) -> Tensor:
        """With +bf16scale the zero point too has 16 bits: rounded down, at least the lowest one."""
        if "bf16scale" not in self.format.options:
            return lowest
        bits = lowest.view(torch.int32)
        rounded = torch.where(bits < 0, bits + 0xFFFF, bits) & -0x10000
        return rounded.view(torch.float32).clamp(min=torch.finfo(torch.bfloat16).min)
