"""The numbers that describe a lattice of uniform levels: what a code can be, how its scale rounds.

Reference and kernels read them from here, so that neither can drift.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.formats import WireFormat
from thinwire.wire.key import Key
from thinwire.wire.scales import ScaleRule

__all__ = ["Levels", "draw_shift", "learn_levels", "nearest_level"]

# The points of int8 from which levels are learned: -128 (never used) to 127.
_NUM_POINTS = 256
_ZERO_POINT = 128
_MAX_EDGES = 512
# More than the squared error of 2**36 elements can be; times `_MAX_EDGES` it still fits 64 bits.
_IMPOSSIBLE = 1 << 53


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
            # Sums are formed at half size, so that is how far decoding reaches.
            rule = ScaleRule.for_levels(reach=top / 2, narrow=narrow, up=up)
            return Levels(top=top, offset=0, span=top, rule=rule)
        # Learned levels are chosen from those of int8.
        bits = 8 if "levels" in fmt.options else fmt.bits
        top = 2 ** (bits - 1) - 1
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


def learn_levels(counts: Tensor, bits: int) -> Tensor:
    """The ``2**bits`` levels with the least squared error for values that were counted.

    Dynamic programming over intervals of the sorted points: the optimum, in integers throughout,
    so that every rank and every device finds the same.

    Args:
        counts: int64, [256], on a CPU; how often each point of int8, plus 128, occurs.

    Returns:
        int8, [2**bits], in ascending order. Levels that nothing needs repeat the highest one.
    """
    occupied = counts.nonzero().view(-1)
    if occupied.numel() <= 2**bits:
        return _filled((occupied - _ZERO_POINT).tolist(), bits)
    costs, centres = _interval_costs(counts)
    edges = torch.arange(_NUM_POINTS + 1)
    # best[stop]: the least error of points 0 to stop, divided into as many intervals as rounds.
    best = costs[0]
    rounds: list[Tensor] = []
    for _ in range(2**bits - 1):
        # One number orders by error, then by start: ties go the same way everywhere.
        ordered = (best.unsqueeze(1) + costs) * _MAX_EDGES + edges.unsqueeze(1)
        least = ordered.amin(dim=0)
        rounds.append(least % _MAX_EDGES)
        best = least // _MAX_EDGES
    levels: list[int] = []
    stop = _NUM_POINTS
    for starts in (*reversed(rounds), torch.zeros(_NUM_POINTS + 1, dtype=torch.int64)):
        start = int(starts[stop])
        if counts[start:stop].any():
            levels.insert(0, int(centres[start, stop]))
        stop = start
    return _filled(levels, bits)


def _filled(levels: list[int], bits: int) -> Tensor:
    """The levels, and the highest one again until there are ``2**bits``."""
    highest = levels[-1] if levels else 0
    return torch.tensor(levels + [highest] * (2**bits - len(levels)), dtype=torch.int8)


def nearest_level(levels: Tensor) -> Tensor:
    """For each point of int8, plus 128, the index of its nearest level: uint8, [256].

    Args:
        levels: int8, in ascending order. Of two equally near ones, the lower is taken.
    """
    points = torch.arange(_NUM_POINTS, device=levels.device) - _ZERO_POINT
    distances = (points.unsqueeze(1) - levels.int().unsqueeze(0)).abs()
    indices = torch.arange(levels.numel(), device=levels.device)
    ordered = distances * levels.numel() + indices
    return (ordered.amin(dim=1) % levels.numel()).to(torch.uint8)


def _interval_costs(counts: Tensor) -> tuple[Tensor, Tensor]:
    """Squared error and best level of the points from one edge to another, for all pairs of edges.

    Both int64, [257, 257]. Where the second edge comes first, the error is out of all proportion.
    """
    points = torch.arange(_NUM_POINTS) - _ZERO_POINT
    number, total, squares = (
        torch.nn.functional.pad((counts * points**power).cumsum(0), (1, 0)) for power in range(3)
    )
    number, total, squares = (
        sums.unsqueeze(0) - sums.unsqueeze(1) for sums in (number, total, squares)
    )
    centres = (2 * total + number).div(2 * number.clamp(min=1), rounding_mode="floor")
    costs = squares - 2 * centres * total + centres**2 * number
    backwards = torch.ones_like(costs, dtype=torch.bool).tril(-1)
    return costs.masked_fill(backwards, _IMPOSSIBLE), centres
