"""The numbers that describe a lattice of uniform levels: what a code can be, how its scale rounds.

Reference and kernels read them from here, so that neither can drift.
"""

from __future__ import annotations

from dataclasses import dataclass

from thinwire.formats import WireFormat
from thinwire.wire.key import Key
from thinwire.wire.scales import ScaleRule

__all__ = ["Levels", "draw_shift"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """Levels of an ``int`` format.

    Attributes:
        top: the largest code; the smallest is ``-top``, or 0 for ``+asym``.
        offset: added to a code so that it is stored without sign.
        span: what the block's magnitude (``+asym``: its range) is divided by to get the scale.
        rule: how the scale is rounded.
    """

    top: int
    offset: int
    span: float
    rule: ScaleRule

    @staticmethod
    def of(fmt: WireFormat) -> Levels:
        """The levels of a format of family ``int``."""
        narrow = "bf16scale" in fmt.options
        if "asym" in fmt.options:
            top = 2**fmt.bits - 1
            # Rounding the scale to p bits moves the top value by up to top * 2**-p steps. From half
            # a step on it could fall beyond the top code, so the scale is rounded up instead.
            up = fmt.is_stochastic or (narrow and top >= 2**7)
            rule = ScaleRule.for_levels(reach=top, narrow=narrow, up=up)
            return Levels(top=top, offset=0, span=top, rule=rule)
        top = 2 ** (fmt.bits - 1) - 1
        offset = top + 1
        if "shift" in fmt.options:
            # Half a step less, since the shift may move a value by that much. The scale is narrow
            # because code + shift takes 16 bits: see [exact products].
            rule = ScaleRule.for_levels(reach=top + 0.5, narrow=True, up=True)
            return Levels(top=top, offset=offset, span=top - 0.5, rule=rule)
        rule = ScaleRule.for_levels(reach=top, narrow=narrow, up=fmt.is_stochastic)
        return Levels(top=top, offset=offset, span=top, rule=rule)


def draw_shift(key: Key, bits: int) -> float:
    """QSDP's shift of the lattice, in steps: one number for a whole tensor.

    It lies on a grid of ``2**(16 - bits)`` points spread evenly over (-1/2, 1/2), so that a code
    plus the shift has 16 bits. Averaged over keys, decoding is unbiased up to half a grid spacing.
    """
    num_points = 1 << (16 - bits)
    point = key.fold("shift").value % num_points
    return (point + 0.5) / num_points - 0.5
