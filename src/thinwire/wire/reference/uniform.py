"""The family ``int``: uniform levels with a scale per block.

Symmetric        x^ = scale * q              q = round(x / scale)             |q| <= 2**(b-1) - 1
``+shift``       x^ = scale * (q + u)        q = round(x / scale - u)         QSDP, section 4
``+asym``        x^ = zero + scale * q       q = round((x - zero) / scale)    0 <= q <= 2**b - 1

``+stochastic`` adds a random number in (-1/2, 1/2) before it rounds (QSGD, section 3): the
expectation of x^ is x.
"""

from __future__ import annotations

import torch
from torch import Tensor

from thinwire.formats import WireFormat
from thinwire.wire.levels import Levels, draw_shift
from thinwire.wire.reference.blocked import BlockedReference, EncodedRows, RandomRows
from thinwire.wire.scales import FLOAT32_MAX, inverse_of

__all__ = ["AffineReference", "ShiftedReference", "SymmetricReference", "uniform_reference"]


def uniform_reference(fmt: WireFormat) -> BlockedReference:
    """The reference codec of a format of family ``int``."""
    if "shift" in fmt.options:
        return ShiftedReference(fmt)
    return AffineReference(fmt) if "asym" in fmt.options else SymmetricReference(fmt)


class _UniformReference(BlockedReference):
    """What the three lattices share."""

    def __init__(self, fmt: WireFormat) -> None:
        super().__init__(fmt)
        self._levels = Levels.of(fmt)

    def _symmetric_scales(self, values: Tensor) -> Tensor:
        magnitudes = values.abs().amax(dim=1)
        return self._levels.rule.round(magnitudes / self._levels.span, magnitudes.isfinite())

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

    def _encode_rows(self, values: Tensor, random: RandomRows) -> EncodedRows:
        levels = self._levels
        scales = self._symmetric_scales(values)
        steps = values * inverse_of(scales).unsqueeze(1)
        codes = self._round(steps, random).clamp(-levels.top, levels.top)
        return EncodedRows(codes=self._stored(codes, scales), scales=scales)

    def _decode_rows(self, rows: EncodedRows) -> Tensor:
        return (rows.codes.float() - self._levels.offset) * rows.scales.unsqueeze(1)


class ShiftedReference(_UniformReference):
    """Levels on both sides of a point drawn anew for every tensor."""

    def _encode_rows(self, values: Tensor, random: RandomRows) -> EncodedRows:
        levels = self._levels
        shift = torch.tensor([draw_shift(random.key, self.format.bits)], device=values.device)
        scales = self._symmetric_scales(values)
        steps = values * inverse_of(scales).unsqueeze(1) - shift
        codes = steps.round().clamp(-levels.top, levels.top)
        return EncodedRows(codes=self._stored(codes, scales), scales=scales, shift=shift)

    def _decode_rows(self, rows: EncodedRows) -> Tensor:
        assert rows.shift is not None
        return (rows.codes.float() - self._levels.offset + rows.shift) * rows.scales.unsqueeze(1)


class AffineReference(_UniformReference):
    """Levels from the block's smallest value up.

    All sums are formed at half size and doubled at the end: a block may reach from the most
    negative float32 to the most positive one, and its range would overflow.
    """

    def _encode_rows(self, values: Tensor, random: RandomRows) -> EncodedRows:
        levels = self._levels
        finite = values.isfinite().all(dim=1)
        lowest, highest = values.aminmax(dim=1)
        zeros = self._round_zero(lowest + 0.0).masked_fill(~finite, 0.0)
        half_range = highest * 0.5 - zeros * 0.5
        scales = levels.rule.round(half_range / levels.span * 2.0, finite)
        per_half_step = inverse_of(scales * 0.5).unsqueeze(1)
        steps = (values * 0.5 - zeros.unsqueeze(1) * 0.5) * per_half_step
        codes = self._round(steps, random).clamp(0, levels.top)
        return EncodedRows(codes=self._stored(codes, scales), scales=scales, zeros=zeros)

    def _decode_rows(self, rows: EncodedRows) -> Tensor:
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
