"""From values to codes: the loops that touch every element of a block.

Each takes a block of a tile's values and writes one byte per code in the same place; a ragged block
is alone in its tile, so the padding of its codes moves nothing. Codes of 4 bits of the usual widths
are packed where they are found: the two of a byte are half a block apart, like the two elements of
a random word. The loops differ from the formulas of
`thinwire.wire.reference.uniform` in nothing: same operations, same order. Meanwhile they prefetch
``ahead``: the pass that finds scales is too quick for requests to come evenly.

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
from thinwire.wire.kernels.memory import STRIP, prefetch, prefetch_strip
from thinwire.wire.kernels.random import centred_high, centred_low, random_word

__all__ = [
    "Block",
    "Codes",
    "codes_between",
    "nearest",
    "nearest_packed",
    "stochastic",
    "stochastic_packed",
]

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


class Block(NamedTuple):
    """A block of a tile, and what its values become codes with.

    Attributes:
        values: float32, those of the tile.
        start: of the block's values among them.
        target: of the block's codes among those of the tile.
        zero: float32, the zero point times the unit of its levels.
        inverse: float32, what to multiply with; 0 where every code is 0.
        word: uint32, names the random numbers of the block where rounding is random.
    """

    values: Any
    start: Any
    target: Any
    zero: Any
    inverse: Any
    word: Any


def codes_between(bottom: int, top: int, offset: int) -> Codes:
    """The codes from ``bottom`` to ``top``, stored with ``offset`` added.

    ``offset`` is even, since rounding to even must see the parity of the code alone.
    """
    assert offset % 2 == 0
    rounder = np.float32(_ROUNDER + np.float32(offset))
    bits = int(rounder.view(np.int32))
    return Codes(rounder=rounder, lowest=np.int32(bits + bottom), highest=np.int32(bits + top))


@element
def nearest(block: Block, width: int, levels: Any, ahead: Any, codes: Any) -> None:
    """Nearest code of ``(value * unit - zero) * inverse - shift`` of ``width`` values."""
    values, start, ahead_bytes = block.values, block.start, ahead.size // block.values.size
    source, target, strips = np.uint64(start), np.uint64(block.target), width // STRIP * STRIP
    for first in range(0, strips, STRIP):
        prefetch_strip(ahead, (start + first) * ahead_bytes, ahead_bytes)
        for i in range(STRIP):
            k = np.uint64(first + i)
            codes[target + k] = np.uint8(_nearest_code(block, values[source + k], levels))
    prefetch(ahead, (start + strips) * ahead_bytes, (start + width) * ahead_bytes)
    for j in range(np.uint64(strips), np.uint64(width)):
        codes[target + j] = np.uint8(_nearest_code(block, values[source + j], levels))


@element
def nearest_packed(block: Block, width: int, levels: Any, ahead: Any, packed: Any) -> None:
    """`nearest` in 4 bits, packed; ``width`` is a multiple of `STRIP`."""
    values, start, ahead_bytes = block.values, block.start, ahead.size // block.values.size
    low, target = np.uint64(start), np.uint64(block.target)
    high = low + np.uint64(width // 2)
    for first in range(0, width // 2, _PAIRS):
        prefetch_strip(ahead, (start + 2 * first) * ahead_bytes, ahead_bytes)
        for i in range(_PAIRS):
            k = np.uint64(first + i)
            low_code = _nearest_code(block, values[low + k], levels)
            high_code = _nearest_code(block, values[high + k], levels)
            packed[target + k] = _joined(low_code, high_code)


@element
def stochastic(block: Block, width: int, levels: Any, ahead: Any, codes: Any) -> None:
    """Nearest code of ``(value * unit - zero) * inverse`` plus a random number in (-1/2, 1/2)."""
    values, start, ahead_bytes = block.values, block.start, ahead.size // block.values.size
    pairs, half = width // 2, (width + 1) // 2
    strips = pairs // _PAIRS * _PAIRS
    low, low_target = np.uint64(start), np.uint64(block.target)
    high, high_target = low + np.uint64(half), low_target + np.uint64(half)
    for first in range(0, strips, _PAIRS):
        prefetch_strip(ahead, (start + 2 * first) * ahead_bytes, ahead_bytes)
        for i in range(_PAIRS):
            k = np.uint64(first + i)
            word = random_word(block.word, k)
            codes[low_target + k] = np.uint8(_low_code(block, values[low + k], word, levels))
            codes[high_target + k] = np.uint8(_high_code(block, values[high + k], word, levels))
    prefetch(ahead, (start + 2 * strips) * ahead_bytes, (start + width) * ahead_bytes)
    for j in range(np.uint64(strips), np.uint64(half)):
        word = random_word(block.word, j)
        codes[low_target + j] = np.uint8(_low_code(block, values[low + j], word, levels))
    for j in range(np.uint64(strips), np.uint64(pairs)):
        word = random_word(block.word, j)
        codes[high_target + j] = np.uint8(_high_code(block, values[high + j], word, levels))


@element
def stochastic_packed(block: Block, width: int, levels: Any, ahead: Any, packed: Any) -> None:
    """`stochastic` in 4 bits, packed; ``width`` is a multiple of `STRIP`."""
    values, start, ahead_bytes = block.values, block.start, ahead.size // block.values.size
    low, target = np.uint64(start), np.uint64(block.target)
    high = low + np.uint64(width // 2)
    for first in range(0, width // 2, _PAIRS):
        prefetch_strip(ahead, (start + 2 * first) * ahead_bytes, ahead_bytes)
        for i in range(_PAIRS):
            k = np.uint64(first + i)
            word = random_word(block.word, k)
            low_code = _low_code(block, values[low + k], word, levels)
            high_code = _high_code(block, values[high + k], word, levels)
            packed[target + k] = _joined(low_code, high_code)


@element
def _joined(low_code: Any, high_code: Any) -> Any:
    """Two codes of 4 bits in a byte, as in `thinwire.wire.reference.planes`."""
    return np.uint8(low_code | (high_code << np.int32(4)))


@element
def _nearest_code(block: Block, value: Any, levels: Any) -> Any:
    return _code(_steps(block, value, levels) - levels.shift, levels.codes)


@element
def _low_code(block: Block, value: Any, word: Any, levels: Any) -> Any:
    return _code(_steps(block, value, levels) + centred_low(word), levels.codes)


@element
def _high_code(block: Block, value: Any, word: Any, levels: Any) -> Any:
    return _code(_steps(block, value, levels) + centred_high(word), levels.codes)


@element
def _steps(block: Block, value: Any, levels: Any) -> Any:
    return (value * levels.unit - block.zero) * block.inverse


@element
def _code(steps: Any, codes: Codes) -> Any:
    """The nearest code, within bounds, in the low byte of an int32, as stored.

    Of NaN, it is some code: callers clear those.
    """
    bits = np.float32(steps + codes.rounder).view(np.int32)
    bits = bits if bits < codes.highest else codes.highest
    bits = bits if bits > codes.lowest else codes.lowest
    return bits
