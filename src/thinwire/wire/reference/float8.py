"""The families ``e4m3`` and ``e5m2``: 8-bit floats with a scale per block.

The scale brings the block's largest magnitude to the largest number of the type (448 or 57344), so
that its whole range is used. The relative error is at most 2**-4 (2**-3) down to the smallest
normal number of the type, and the absolute error is constant below it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.formats import WireFormat
from thinwire.wire.reference.blocked import BlockedReference, EncodedRows, RandomRows
from thinwire.wire.scales import ScaleRule, divided, inverse_of

__all__ = ["FLOAT8_TYPES", "Float8Reference", "Float8Type"]

_FLOAT32_MANTISSA_BITS = 23
_FLOAT32_EXPONENT_BIAS = 127


@dataclass(frozen=True, slots=True, kw_only=True)
class Float8Type:
    """One way to split 8 bits into exponent and mantissa."""

    dtype: torch.dtype
    mantissa_bits: int
    smallest_exponent: int
    largest: float


FLOAT8_TYPES = {
    "e4m3": Float8Type(
        dtype=torch.float8_e4m3fn, mantissa_bits=3, smallest_exponent=-6, largest=448.0
    ),
    "e5m2": Float8Type(
        dtype=torch.float8_e5m2, mantissa_bits=2, smallest_exponent=-14, largest=57344.0
    ),
}


class Float8Reference(BlockedReference):
    """Rounds to nearest even, or at random to one of the two neighbours with ``+stochastic``."""

    def __init__(self, fmt: WireFormat) -> None:
        super().__init__(fmt)
        self._type = FLOAT8_TYPES[fmt.family]
        self._rule = ScaleRule.for_levels(
            reach=self._type.largest, narrow="bf16scale" in fmt.options, up=fmt.is_stochastic
        )

    def _encode_rows(self, values: Tensor, random: RandomRows, head: Tensor) -> EncodedRows:
        del head
        largest = self._type.largest
        magnitudes = values.abs().amax(dim=1)
        scales = self._rule.round(divided(magnitudes, largest), magnitudes.isfinite())
        scaled = values * inverse_of(scales).unsqueeze(1)
        if "stochastic" in self.format.options:
            scaled = self._round_at_random(scaled, random)
        codes = scaled.clamp(-largest, largest).to(self._type.dtype).view(torch.uint8)
        codes = codes.masked_fill(scales.isnan().unsqueeze(1), 0)
        return EncodedRows(codes=codes, scales=scales)

    def _decode_rows(self, rows: EncodedRows, head: Tensor) -> Tensor:
        del head
        return rows.codes.view(self._type.dtype).float() * rows.scales.unsqueeze(1)

    def _round_at_random(self, scaled: Tensor, random: RandomRows) -> Tensor:
        """Add a random part of the grid's spacing to magnitudes, then round to the grid."""
        exponents = (scaled.abs().view(torch.int32) >> _FLOAT32_MANTISSA_BITS).clamp(
            min=_FLOAT32_EXPONENT_BIAS + self._type.smallest_exponent
        )
        spacing_bits = exponents - self._type.mantissa_bits << _FLOAT32_MANTISSA_BITS
        spacing = spacing_bits.view(torch.float32)
        magnitude = (scaled.abs() / spacing + random.centred(scaled)).round() * spacing
        return magnitude.copysign(scaled)
