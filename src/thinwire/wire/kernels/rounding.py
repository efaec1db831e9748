"""From values to codes: the loops that touch every element of a block.

Each takes a block of a tile's values and writes one byte per code in the same place; a ragged block
is alone in its tile, so the padding of its codes moves nothing. They differ from the formulas of
`thinwire.wire.reference.uniform` in nothing: same operations, same order. Meanwhile they prefetch
what the pass that found the scale has left of ``ahead``.

    note [rounding by addition]
    Adding 1.5 * 2**23 to a float32 below 2**22 leaves the number, rounded to nearest even, in its
    low bits. Bounds are compared on those bits, as integers, and the lowest byte is the code.
    This takes half the instructions of rounding, converting and adding an offset.

A random word serves two elements, half a block apart, as in `thinwire.wire.key.random_halves`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from thinwire.wire.kernels.compiled import element
from thinwire.wire.kernels.memory import STRIP, prefetch, prefetch_in_second_pass
from thinwire.wire.kernels.random import block_word, centred_high, centred_low, random_word

__all__ = ["Codes", "Scaling", "codes_between", "nearest", "stochastic"]

# A random word serves two elements, so half a strip of pairs is a strip.
_PAIRS = STRIP // 2

_ROUNDER = np.float32(1.5 * 2**23)


class Codes(NamedTuple):
    """Which codes there are, as numbers for [rounding by addition].

    Attributes:
        rounder: float32, 1.5 * 2**23 plus what is added to a code to store it without sign.
        lowest, highest: int32, the bits of ``rounder`` plus the smallest and the largest code.
    """

    rounder: Any
    lowest: Any
    highest: Any


class Scaling(NamedTuple):
    """What a block's values become codes with.

    Attributes:
        zero: float32, the zero point times the unit of its levels.
        inverse: float32, what to multiply with; 0 where every code is 0.
    """

    zero: Any
    inverse: Any


def codes_between(bottom: int, top: int, offset: int) -> Codes:
    """The codes from ``bottom`` to ``top``, stored with ``offset`` added.

    ``offset`` is even, since rounding to even must see the parity of the code alone.
    """
    assert offset % 2 == 0
    rounder = np.float32(_ROUNDER + np.float32(offset))
    bits = int(rounder.view(np.int32))
    return Codes(rounder=rounder, lowest=np.int32(bits + bottom), highest=np.int32(bits + top))


@element
def nearest(
    values: Any,
    start: int,
    width: int,
    scaling: Scaling,
    levels: Any,
    ahead: Any,
    codes: Any,
) -> None:
    """Nearest code of ``(value * unit - zero) * inverse - shift`` of ``width`` values."""
    unit, shift, bounds = levels.unit, levels.shift, levels.codes
    zero, inverse, ahead_bytes = scaling.zero, scaling.inverse, ahead.size // values.size
    strips, end = start + width // STRIP * STRIP, start + width
    for first in range(start, strips, STRIP):
        prefetch_in_second_pass(ahead, first * ahead_bytes, ahead_bytes)
        for i in range(STRIP):
            k = np.uint64(first + i)
            steps = (values[k] * unit - zero) * inverse - shift
            codes[k] = _code(steps, bounds)
    prefetch(ahead, strips * ahead_bytes, end * ahead_bytes)
    for j in range(np.uint64(strips), np.uint64(end)):
        steps = (values[j] * unit - zero) * inverse - shift
        codes[j] = _code(steps, bounds)


@element
def stochastic(
    values: Any,
    start: int,
    width: int,
    scaling: Scaling,
    levels: Any,
    block: int,
    ahead: Any,
    codes: Any,
) -> None:
    """Nearest code of ``(value * unit - zero) * inverse`` plus a random number in (-1/2, 1/2)."""
    unit, bounds = levels.unit, levels.codes
    zero, inverse, ahead_bytes = scaling.zero, scaling.inverse, ahead.size // values.size
    pairs, half = width // 2, (width + 1) // 2
    strips = pairs // _PAIRS * _PAIRS
    base = block_word(levels.key, block)
    low = np.uint64(start)
    high = low + np.uint64(half)
    for first in range(0, strips, _PAIRS):
        prefetch_in_second_pass(ahead, (start + 2 * first) * ahead_bytes, ahead_bytes)
        for i in range(_PAIRS):
            k = np.uint64(first + i)
            word = random_word(base, k)
            steps = (values[low + k] * unit - zero) * inverse
            codes[low + k] = _code(steps + centred_low(word), bounds)
            steps = (values[high + k] * unit - zero) * inverse
            codes[high + k] = _code(steps + centred_high(word), bounds)
    prefetch(ahead, (start + 2 * strips) * ahead_bytes, (start + width) * ahead_bytes)
    for j in range(np.uint64(strips), np.uint64(half)):
        steps = (values[low + j] * unit - zero) * inverse
        codes[low + j] = _code(steps + centred_low(random_word(base, j)), bounds)
    for j in range(np.uint64(strips), np.uint64(pairs)):
        steps = (values[high + j] * unit - zero) * inverse
        codes[high + j] = _code(steps + centred_high(random_word(base, j)), bounds)


@element
def _code(steps: Any, codes: Codes) -> Any:
    """The nearest code, within bounds, as stored. Of NaN, it is some code: callers clear those."""
    bits = np.float32(steps + codes.rounder).view(np.int32)
    bits = bits if bits < codes.highest else codes.highest
    bits = bits if bits > codes.lowest else codes.lowest
    return np.uint8(bits)
