"""How the scale of a block is rounded, so that every implementation decodes to the same bits.

    note [exact products]
    A scale keeps 16 significant bits (8 with +bf16scale and with +shift) of the 24 of a float32. A
    code has at most 8 (16 with the shift added). Their product therefore fits into 24 bits: it is
    exact, whatever the order of operations, fused or not. Decoding is the same on every device, and
    encoding what was decoded gives the same codes again.

A scale is rounded to nearest when the largest value of the block then still rounds to the top
code. Where that could overshoot (stochastic rounding, a shifted lattice, or more levels than the
scale has bits), it is rounded up. Scales below `SMALLEST_SCALE` become 0: the block decodes to 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["FLOAT32_MAX", "SMALLEST_SCALE", "ScaleRule", "divided", "inverse_of"]

FLOAT32_MAX = float(torch.finfo(torch.float32).max)

# Twice the smallest normal number: half a scale is still normal, so that no arithmetic with scales
# depends on whether a device flushes denormals.
SMALLEST_SCALE = 2.0**-125

_FLOAT32_SIGNIFICANT_BITS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleRule:
    """Rounds scales to ``significant_bits``, to nearest or up, at most ``largest``."""

    significant_bits: int
    up: bool
    largest: float

    @staticmethod
    def for_levels(*, reach: float, narrow: bool, up: bool) -> ScaleRule:
        """The rule for codes that reach up to ``reach`` times the scale.

        Args:
            reach: the largest multiple of the scale that decoding forms; it must stay finite.
            narrow: 8 significant bits (a bfloat16) instead of 16.
            up: never round down, because a value above the top code would be cut off.
        """
        significant_bits = 8 if narrow else 16
        return ScaleRule(
            significant_bits=significant_bits,
            up=up,
            largest=_round_down(FLOAT32_MAX / reach, significant_bits),
        )

    @property
    def dropped_bits(self) -> int:
        """Low mantissa bits that a scale does not have."""
        return _FLOAT32_SIGNIFICANT_BITS - self.significant_bits

    @property
    def added(self) -> int:
        """What to add to the bits of a float before cutting the dropped ones off."""
        return (1 << self.dropped_bits) - 1 if self.up else 1 << (self.dropped_bits - 1)

    @property
    def mask(self) -> int:
        """Which bits to keep, as a signed number."""
        return -(1 << self.dropped_bits)

    def round(self, scales: Tensor, finite: Tensor) -> Tensor:
        """Rounded float32 scales; NaN for the blocks that are not ``finite``."""
        bits = scales.view(torch.int32) + self.added & self.mask
        rounded = bits.view(torch.float32).clamp(max=self.largest)
        rounded = rounded.masked_fill(scales < SMALLEST_SCALE, 0.0)
        return rounded.masked_fill(~finite, math.nan)


def inverse_of(scales: Tensor) -> Tensor:
    """What to multiply by: 1 / scale, or 0 where it is 0 or NaN, so that every code becomes 0."""
    return (1.0 / scales).masked_fill(~(scales > 0), 0.0)


def divided(values: Tensor, divisor: float) -> Tensor:
    """``values / divisor``, rounded like any division.

    On an accelerator torch multiplies by the reciprocal of a Python number, which rounds twice.
    """
    return values / torch.full((), divisor, device=values.device)


def _round_down(value: float, significant_bits: int) -> float:
    mantissa, exponent = math.frexp(value)
    integer = math.floor(math.ldexp(mantissa, significant_bits))
    return math.ldexp(integer, exponent - significant_bits)
