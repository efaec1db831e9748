"""From values to codes: the loops that touch every element of a tile.

Each takes the values of a tile, block after block, and writes one byte per code. They differ from
the formulas of `thinwire.wire.reference.uniform` in nothing: same operations, same order. Meanwhile
they prefetch bytes ``ahead``.

    note [rounding by addition]
    Adding 1.5 * 2**23 to a float32 below 2**22 leaves the number, rounded to nearest even, in its
    low bits. Bounds are compared on those bits, as integers, and the lowest byte is the code.
    This takes half the instructions of rounding, converting and adding an offset.

A random word serves two elements, half a block apart, as in `thinwire.wire.key.random_halves`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from thinwire.wire.kernels.compiled import loop
from thinwire.wire.kernels.memory import prefetch
from thinwire.wire.kernels.random import block_word, centred_high, centred_low, random_word
from thinwire.wire.kernels.scales import STRIP

__all__ = ["Codes", "codes_between", "nearest", "stochastic"]

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


def codes_between(bottom: int, top: int, offset: int) -> Codes:
    """The codes from ``bottom`` to ``top``, stored with ``offset`` added.

    ``offset`` is even, since rounding to even must see the parity of the code alone.
    """
    assert offset % 2 == 0
    rounder = np.float32(_ROUNDER + np.float32(offset))
    bits = int(rounder.view(np.int32))
    return Codes(rounder=rounder, lowest=np.int32(bits + bottom), highest=np.int32(bits + top))


@loop
def nearest(
    values: Any, width: int, zeros: Any, inverses: Any, levels: Any, ahead: Any, codes: Any
) -> None:
    """Nearest code of ``(value * unit - zero) * inverse - shift``."""
    stride = codes.size // inverses.size
    ahead_bytes = ahead.size // values.size
    for block in range(inverses.size):
        zero, inverse = zeros[block], inverses[block]
        moved = np.uint64(block * stride) - np.uint64(block * width)
        end = (block + 1) * width
        for start in range(block * width, end, STRIP):
            stop = min(start + STRIP, end)
            prefetch(ahead, start * ahead_bytes, stop * ahead_bytes)
            for i in range(np.uint64(start), np.uint64(stop)):
                steps = (values[i] * levels.unit - zero) * inverse - levels.shift
                codes[i + moved] = _code(steps, levels.codes)


@loop
def stochastic(
    values: Any,
    width: int,
    zeros: Any,
    inverses: Any,
    levels: Any,
    first_block: int,
    ahead: Any,
    codes: Any,
) -> None:
    """Nearest code of ``(value * unit - zero) * inverse`` plus a random number in (-1/2, 1/2)."""
    stride = codes.size // inverses.size
    ahead_bytes = ahead.size // values.size
    half = np.uint64((width + 1) // 2)
    for block in range(inverses.size):
        zero, inverse = zeros[block], inverses[block]
        base = block_word(levels.key, first_block + block)
        low, low_code = np.uint64(block * width), np.uint64(block * stride)
        pairs = width // 2
        for start in range(0, pairs, STRIP):
            stop = min(start + STRIP, pairs)
            first = block * width + 2 * start
            prefetch(ahead, first * ahead_bytes, (first + 2 * (stop - start)) * ahead_bytes)
            for i in range(np.uint64(start), np.uint64(stop)):
                word = random_word(base, i)
                steps = (values[low + i] * levels.unit - zero) * inverse
                codes[low_code + i] = _code(steps + centred_low(word), levels.codes)
                steps = (values[low + half + i] * levels.unit - zero) * inverse
                codes[low_code + half + i] = _code(steps + centred_high(word), levels.codes)
        if width % 2:
            middle = half - np.uint64(1)
            steps = (values[low + middle] * levels.unit - zero) * inverse
            steps += centred_low(random_word(base, middle))
            codes[low_code + middle] = _code(steps, levels.codes)


@loop
def _code(steps: Any, codes: Codes) -> Any:
    """The nearest code, within bounds, as stored. Of NaN, it is some code: callers clear those."""
    bits = np.float32(steps + codes.rounder).view(np.int32)
    bits = bits if bits < codes.highest else codes.highest
    bits = bits if bits > codes.lowest else codes.lowest
    return np.uint8(bits)
