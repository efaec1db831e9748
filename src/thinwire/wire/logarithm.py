"""The levels of the ``log`` formats, for reference and kernels alike.

A level has 8 significant bits, so that its product with a scale of 16 is exact: see
`thinwire.wire.scales`, note [exact products]. An edge between two levels then has 9, and the first
8 bits of a mantissa say on which side of it a number lies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from thinwire.formats import WireFormat
from thinwire.wire.scales import ScaleRule

__all__ = ["LogLevels"]

_LEVEL_BITS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLevels:
    """Levels of a ``log`` format, in units of the scale.

    Attributes:
        per_octave: levels from one power of two to the next.
        levels: magnitudes in ascending order; the first one is 0, the second 1.
        rule: how the scale is rounded.
    """

    per_octave: int
    levels: tuple[float, ...]
    rule: ScaleRule

    @staticmethod
    def of(fmt: WireFormat) -> LogLevels:
        """The levels of a format of family ``log``."""
        per_octave = 1 << fmt.bits - 4
        count = 1 << fmt.bits - 1
        levels = (0.0, *(_level(step, per_octave) for step in range(count - 1)))
        rule = ScaleRule.for_levels(
            reach=levels[-1], narrow="bf16scale" in fmt.options, up=fmt.is_stochastic
        )
        return LogLevels(per_octave=per_octave, levels=levels, rule=rule)

    @property
    def reach(self) -> float:
        """The top level: what the magnitude of a block is divided by to get the scale."""
        return self.levels[-1]

    @property
    def edges(self) -> tuple[float, ...]:
        """The middle between each level and the next: from there on, the next one is taken."""
        return tuple(
            (low + high) / 2 for low, high in zip(self.levels, self.levels[1:], strict=False)
        )

    @property
    def signed(self) -> tuple[float, ...]:
        """The value of each code: the highest bit is the sign."""
        return (*self.levels, *(-level for level in self.levels))


def _level(step: int, per_octave: int) -> float:
    """``2**(step / per_octave)``, rounded to 8 significant bits."""
    octave, part = divmod(step, per_octave)
    steps_per_unit = 2 ** (_LEVEL_BITS - 1)
    return math.ldexp(round(2 ** (part / per_octave) * steps_per_unit), octave - _LEVEL_BITS + 1)
