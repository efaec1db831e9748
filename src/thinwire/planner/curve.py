"""A share that depends on size: how much of a peak is reached by small and by large work."""

from __future__ import annotations

import bisect
import itertools
import math
from dataclasses import dataclass

from thinwire.errors import ConfigError
from thinwire.planner.number_range import check_number
from thinwire.quoting import quoted

__all__ = ["Curve"]


@dataclass(frozen=True, slots=True)
class Curve:
    """A share between known sizes, straight on a logarithmic axis of size, flat outside.

    Attributes:
        points: pairs of size and share, sizes rising.

    Raises:
        ConfigError: no point, sizes that do not rise, or a share that is not in (0, 1].
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        if not self.points:
            raise ConfigError("it needs at least one [size, share] pair")
        sizes = [size for size, _ in self.points]
        is_rising = all(a < b for a, b in itertools.pairwise((0.0, *sizes, math.inf)))
        if not is_rising:
            raise ConfigError(f"its sizes must rise from above 0, not {quoted(sizes)}")
        for _, share in self.points:
            check_number("a share in it", share)
            if share > 1:
                raise ConfigError(f"a share of {share} in it is above 1, which is all of it")

    @classmethod
    def flat(cls, share: float) -> Curve:
        """The same share for all sizes."""
        return cls(((1.0, share),))

    def at(self, size: float) -> float:
        """The share reached by work of this size."""
        index = bisect.bisect_right(self.points, size, key=lambda point: point[0])
        if index == 0:
            return self.points[0][1]
        if index == len(self.points):
            return self.points[-1][1]
        (low, low_share), (high, high_share) = self.points[index - 1], self.points[index]
        position = math.log(size / low) / math.log(high / low)
        return low_share + position * (high_share - low_share)

    def scaled(self, factor: float) -> Curve:
        """Every share times a factor, at most 1."""
        return Curve(tuple((size, min(1.0, share * factor)) for size, share in self.points))
