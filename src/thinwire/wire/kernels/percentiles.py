"""``+clip``: how far the values of a block reach when the outermost are cut off.

note [bisection]
    Float bits without their sign, and ordered ones with it, are ordered like the numbers. How many
    of a block reach a bound is one pass of vector comparisons, and the bound that so many reach is
    found by halving: first octave by octave down from the largest, then between two bounds, until
    as many reach it as are wanted. A block of 128 takes about ten passes, each in the nearest
    cache; equal values, among which no bound divides, take up to thirty.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from thinwire.wire.kernels.compiled import loop
from thinwire.wire.kernels.memory import words_at
from thinwire.wire.kernels.scales import INFINITY, ordered

__all__ = ["clip_extremes", "clip_magnitudes"]

_MAGNITUDE = np.int32(0x7FFFFFFF)
_NOT = np.int32(-1)
_OCTAVE = np.int64(1 << 23)
_LOWEST_KEY, _HIGHEST_KEY = np.int64(-(1 << 31)), np.int32((1 << 31) - 1)


@loop
def clip_magnitudes(values: Any, num_clipped: int, spare: Any, magnitudes: Any) -> None:
    """Replace the largest magnitude of each finite block by the largest that is not cut off.

    Args:
        values: float32, blocks of equal width.
        num_clipped: how many of a block are cut off.
        spare: uint8, four for each value.
        magnitudes: float bits, int32, one for each block.
    """
    if num_clipped == 0:
        return
    bits, width = values.view(np.int32), values.size // magnitudes.size
    keys = words_at(spare.ctypes.data, width)
    for block in range(magnitudes.size):
        if magnitudes[block] < INFINITY:
            first = np.uint64(block * width)
            for i in range(np.uint64(width)):
                keys[i] = bits[first + i] & _MAGNITUDE
            magnitudes[block] = _ranked(keys, num_clipped + 1, magnitudes[block])


@loop
def clip_extremes(values: Any, num_clipped: int, spare: Any, lowest: Any, highest: Any) -> None:
    """The same for the smallest and the largest value: ``num_clipped`` are cut off at either end.

    Blocks that are not finite have NaN as their highest value, and stay.
    """
    if num_clipped == 0:
        return
    bits, width = values.view(np.int32), values.size // lowest.size
    keys = words_at(spare.ctypes.data, width)
    for block in range(lowest.size):
        if highest[block] < INFINITY:
            first = np.uint64(block * width)
            for i in range(np.uint64(width)):
                keys[i] = ordered(bits[first + i])
            top = _ranked(keys, num_clipped + 1, ordered(highest[block]))
            for i in range(np.uint64(width)):
                keys[i] = keys[i] ^ _NOT
            bottom = _ranked(keys, num_clipped + 1, ordered(lowest[block]) ^ _NOT)
            highest[block], lowest[block] = ordered(top), ordered(np.int32(bottom ^ _NOT))


@loop
def _ranked(keys: Any, rank: int, largest: Any) -> Any:
    """The key of a rank, counted from 1 for the largest: see [bisection]."""
    low, num_reaching, step = np.int64(largest) + 1, 0, _OCTAVE
    high = low
    while num_reaching < rank:
        high, low = low, max(low - step, _LOWEST_KEY)
        num_reaching, step = _num_reaching(keys, low), 2 * step
    while num_reaching > rank and high - low > 1:
        middle = (low + high) // 2
        num = _num_reaching(keys, middle)
        # Choices instead of branches, half of which would be guessed wrong.
        high = high if num >= rank else middle
        low, num_reaching = (middle, num) if num >= rank else (low, num_reaching)
    return _smallest_from(keys, np.int32(low))


@loop
def _num_reaching(keys: Any, bound: Any) -> Any:
    low, num = np.int32(bound), np.int32(0)
    for i in range(np.uint64(keys.size)):
        num = np.int32(num + np.int32(keys[i] >= low))
    return np.int64(num)


@loop
def _smallest_from(keys: Any, low: Any) -> Any:
    smallest = _HIGHEST_KEY
    for i in range(np.uint64(keys.size)):
        key = keys[i] if keys[i] >= low else _HIGHEST_KEY
        smallest = key if key < smallest else smallest
    return smallest
