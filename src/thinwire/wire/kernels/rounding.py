"""From values to codes: the loops that touch every element of a tile.

Each takes the values of a tile, block after block, and writes one byte per code. They differ from
the formulas of `thinwire.wire.reference.uniform` in nothing: same operations, same order. Meanwhile
they ask for the memory of the next tile, ``ahead``, a strip at a time (see `prefetch`).

A random word serves two elements, half a block apart, as in `thinwire.wire.key.random_halves`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from thinwire.wire.kernels.compiled import loop
from thinwire.wire.kernels.prefetch import prefetch
from thinwire.wire.key import GOLDEN_32

__all__ = ["affine", "affine_stochastic", "symmetric", "symmetric_stochastic"]

# Elements between two requests for memory: few enough that the requests never queue up.
_STRIP = 128

_GOLDEN = np.uint32(GOLDEN_32)
_STEP = np.float32(2.0**-16)
_HALF_STEP = np.float32(2.0**-17)
_HALF = np.float32(0.5)


@loop
def symmetric(values: Any, width: int, inverses: Any, levels: Any, ahead: Any, codes: Any) -> None:
    """Nearest code of ``value * inverse - shift``."""
    stride = codes.size // inverses.size
    ahead_bytes = ahead.size // values.size
    for block in range(inverses.size):
        inverse = inverses[block]
        for start in range(0, width, _STRIP):
            first, last = block * width + start, block * width + min(start + _STRIP, width)
            prefetch(ahead, first * ahead_bytes, last * ahead_bytes)
            strip = values[first:last]
            target = codes[block * stride + start : block * stride + start + strip.size]
            for i in range(target.size):
                code = np.int32(np.rint(strip[i] * inverse - levels.shift))
                target[i] = _stored(code, -levels.top, levels.top, levels.offset)


@loop
def affine(
    values: Any, width: int, zeros: Any, inverses: Any, levels: Any, ahead: Any, codes: Any
) -> None:
    """Nearest code of ``(value - zero) * inverse``, formed at half size."""
    stride = codes.size // inverses.size
    ahead_bytes = ahead.size // values.size
    for block in range(inverses.size):
        zero, inverse = zeros[block] * _HALF, inverses[block]
        for start in range(0, width, _STRIP):
            first, last = block * width + start, block * width + min(start + _STRIP, width)
            prefetch(ahead, first * ahead_bytes, last * ahead_bytes)
            strip = values[first:last]
            target = codes[block * stride + start : block * stride + start + strip.size]
            for i in range(target.size):
                code = np.int32(np.rint((strip[i] * _HALF - zero) * inverse))
                target[i] = _stored(code, np.int32(0), levels.top, np.int32(0))


@loop
def symmetric_stochastic(
    values: Any, width: int, inverses: Any, levels: Any, first_block: int, ahead: Any, codes: Any
) -> None:
    """``value * inverse`` rounded down after adding a random number in (0, 1)."""
    stride = codes.size // inverses.size
    ahead_bytes = ahead.size // values.size
    half = (width + 1) // 2
    for block in range(inverses.size):
        inverse = inverses[block]
        word_of_block = _block_word(levels.key, first_block + block)
        for start in range(0, half, _STRIP):
            size = min(start + _STRIP, half) - start
            first = block * width + start
            prefetch(
                ahead,
                (block * width + 2 * start) * ahead_bytes,
                (block * width + 2 * (start + size)) * ahead_bytes,
            )
            low = values[first : first + size]
            high = values[first + half : min(first + half + size, (block + 1) * width)]
            first = block * stride + start
            low_codes = codes[first : first + low.size]
            high_codes = codes[first + half : first + half + high.size]
            for i in range(high.size):
                word = _random_word(word_of_block, start + i)
                code = np.int32(np.floor(low[i] * inverse + _unit_low(word)))
                low_codes[i] = _stored(code, -levels.top, levels.top, levels.offset)
                code = np.int32(np.floor(high[i] * inverse + _unit_high(word)))
                high_codes[i] = _stored(code, -levels.top, levels.top, levels.offset)
            for i in range(high.size, low.size):
                word = _random_word(word_of_block, start + i)
                code = np.int32(np.floor(low[i] * inverse + _unit_low(word)))
                low_codes[i] = _stored(code, -levels.top, levels.top, levels.offset)


@loop
def affine_stochastic(
    values: Any,
    width: int,
    zeros: Any,
    inverses: Any,
    levels: Any,
    first_block: int,
    ahead: Any,
    codes: Any,
) -> None:
    """``(value - zero) * inverse`` rounded down after adding a random number in (0, 1)."""
    stride = codes.size // inverses.size
    ahead_bytes = ahead.size // values.size
    half = (width + 1) // 2
    bottom = np.int32(0)
    for block in range(inverses.size):
        zero, inverse = zeros[block] * _HALF, inverses[block]
        word_of_block = _block_word(levels.key, first_block + block)
        for start in range(0, half, _STRIP):
            size = min(start + _STRIP, half) - start
            first = block * width + start
            prefetch(
                ahead,
                (block * width + 2 * start) * ahead_bytes,
                (block * width + 2 * (start + size)) * ahead_bytes,
            )
            low = values[first : first + size]
            high = values[first + half : min(first + half + size, (block + 1) * width)]
            first = block * stride + start
            low_codes = codes[first : first + low.size]
            high_codes = codes[first + half : first + half + high.size]
            for i in range(high.size):
                word = _random_word(word_of_block, start + i)
                code = np.int32(np.floor((low[i] * _HALF - zero) * inverse + _unit_low(word)))
                low_codes[i] = _stored(code, bottom, levels.top, bottom)
                code = np.int32(np.floor((high[i] * _HALF - zero) * inverse + _unit_high(word)))
                high_codes[i] = _stored(code, bottom, levels.top, bottom)
            for i in range(high.size, low.size):
                word = _random_word(word_of_block, start + i)
                code = np.int32(np.floor((low[i] * _HALF - zero) * inverse + _unit_low(word)))
                low_codes[i] = _stored(code, bottom, levels.top, bottom)


@loop
def _stored(code: Any, bottom: Any, top: Any, offset: Any) -> Any:
    """A code within its bounds as an unsigned byte.

    The code of NaN or Inf is any number; the caller clears blocks that are not finite.
    """
    code = code if code < top else top
    code = code if code > bottom else bottom
    return np.uint8(code + offset)


@loop
def _block_word(key: int, block: int) -> Any:
    """32 bits that name a block: the low half of SplitMix64's finalizer of key + block."""
    word = np.uint64(key) + np.uint64(block)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.uint32(word ^ (word >> np.uint64(31)))


@loop
def _random_word(base: Any, position: int) -> Any:
    """32 random bits: "lowbias32" of base + position * GOLDEN_32."""
    word = np.uint32(base + np.uint32(np.uint32(position) * _GOLDEN))
    word = np.uint32((word ^ (word >> np.uint32(16))) * np.uint32(0x7FEB352D))
    word = np.uint32((word ^ (word >> np.uint32(15))) * np.uint32(0x846CA68B))
    return word ^ (word >> np.uint32(16))


@loop
def _unit_low(word: Any) -> Any:
    """The low 16 bits of a word and half a step, in (0, 1)."""
    return np.float32(np.int32(word & np.uint32(0xFFFF))) * _STEP + _HALF_STEP


@loop
def _unit_high(word: Any) -> Any:
    """The high 16 bits of a word and half a step, in (0, 1)."""
    return np.float32(np.int32(word >> np.uint32(16))) * _STEP + _HALF_STEP
