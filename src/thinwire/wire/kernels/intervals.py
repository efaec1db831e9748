"""The search for the levels of ``+levels``, as in `thinwire.wire.levels.learn_levels`.

The same dynamic programming over intervals of the 256 points of int8, in one table of half a
megabyte and a fraction of a millisecond: it is done for every tensor, small ones too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from thinwire.wire.kernels.compiled import element, entry, loop

__all__ = ["best_levels"]

_ZERO_POINT = 128
_WORST = np.int64((1 << 63) - 1)


@entry
def best_levels(counts: Any, num_levels: int) -> Any:
    """The levels with the least squared error, ascending, and the highest again to fill up: int8.

    Args:
        counts: int64, [256]; how often each point, plus 128, occurs.
        num_levels: how many levels.
    """
    found, levels = 0, np.zeros(num_levels, np.int8)
    num_occupied = np.count_nonzero(counts)
    starts = np.zeros((num_levels, counts.size + 1), np.int64)
    sums = _sums(counts)
    if num_occupied > num_levels:
        _search(sums, starts)
    else:
        _one_each(counts, num_levels, starts)
    stop = counts.size
    for row in range(num_levels - 1, -1, -1):
        start = starts[row, stop]
        if sums[0, stop] > sums[0, start]:
            levels[found] = _centre(sums, start, stop)
            found += 1
        stop = start
    ascending = levels[:found][::-1].copy()
    levels[:found] = ascending
    levels[found:] = levels[found - 1] if found else 0
    return levels


@loop
def _one_each(counts: Any, num_levels: int, starts: Any) -> None:
    """An interval for every point that occurs; the first ones may be empty."""
    row = num_levels - 1
    for point in range(counts.size - 1, -1, -1):
        if counts[point]:
            starts[row, point + 1 :] = point
            row -= 1


@loop
def _search(sums: Any, starts: Any) -> None:
    """Where the last interval of the points up to an edge starts, by the number of intervals."""
    num_levels, num_edges = starts.shape
    costs = np.empty((num_edges, num_edges), np.int64)
    for start in range(num_edges):
        for stop in range(start, num_edges):
            costs[start, stop] = _cost(sums, start, stop)
    best, better = costs[0].copy(), np.empty(num_edges, np.int64)
    for row in range(1, num_levels):
        better[:] = _WORST
        for start in range(num_edges):
            own, given, taken = costs[start], best[start], starts[row]
            for stop in range(np.uint64(start), np.uint64(num_edges)):
                cost = given + own[stop]
                taken[stop] = start if cost < better[stop] else taken[stop]
                better[stop] = min(cost, better[stop])
        best[:] = better


@loop
def _sums(counts: Any) -> Any:
    """How many values lie below each edge, their sum and the sum of their squares: [3, edges]."""
    sums = np.zeros((3, counts.size + 1), np.int64)
    for index in range(counts.size):
        count, point = counts[index], index - _ZERO_POINT
        sums[0, index + 1] = sums[0, index] + count
        sums[1, index + 1] = sums[1, index] + count * point
        sums[2, index + 1] = sums[2, index] + count * point * point
    return sums


@element
def _centre(sums: Any, start: int, stop: int) -> Any:
    """The level that loses least between two edges: the mean, halves upward."""
    number, total = sums[0, stop] - sums[0, start], sums[1, stop] - sums[1, start]
    return (2 * total + number) // (2 * max(number, 1))


@element
def _cost(sums: Any, start: int, stop: int) -> Any:
    """The sum of squared errors between two edges."""
    number, total = sums[0, stop] - sums[0, start], sums[1, stop] - sums[1, start]
    centre = _centre(sums, start, stop)
    return sums[2, stop] - sums[2, start] - 2 * centre * total + centre * centre * number
