"""Codes of logarithmic levels from the bits of floats, and back, mostly in arithmetic on bytes.

    note [octaves]
    Levels and the edges between them have the same mantissas in every octave. So the number of the
    level nearest to ``units = magnitude / scale`` is, from 1 on,

        1 + octave * places + how many edges of an octave its mantissa reaches

    where an octave has as many places as levels. Below 1 there is one edge, 1/2. Levels have seven
    bits of mantissa and edges eight, so that they are compared as bytes. The other way, the bits of
    a level are its octave and the mantissa of its place.

What a loop leaves for the next one are two bytes an element: the number that its octave alone
gives, with the sign in the highest bit, and the leading bits of its mantissa.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from thinwire.wire.kernels import tiles
from thinwire.wire.kernels.compiled import element, loop
from thinwire.wire.kernels.memory import prefetch
from thinwire.wire.kernels.random import block_word, centred_high, centred_low, random_word
from thinwire.wire.kernels.shifts import left, right
from thinwire.wire.kernels.stairs import climb

__all__ = ["Octaves", "nearest", "one_of_two", "spread"]

_MAGNITUDE = np.int32(0x7FFFFFFF)
_MANTISSA = np.int32(0x7FFFFF)
_MANTISSA_BITS = np.int32(23)
_HALF_BITS, _ONE_BITS = np.int32(0x3F000000), np.int32(0x3F800000)
_LAST_BITS = np.int32(0x437FFFFF)  # just below 256, where the last octave of all formats ends
_ONE = np.uint8(1)
_SIGN, _UNSIGNED = np.uint8(0x80), np.uint8(0x7F)
_HALF = np.float32(0.5)
_LEVEL_SHIFT = np.int32(16)  # from the 7 mantissa bits of a level to the 23 of a float
_PER_LEVEL_BIT = np.float32(2.0**-16)
_EXPONENT_BELOW_ONE = np.uint8(126)


class Octaves(NamedTuple):
    """`thinwire.wire.logarithm.LogLevels` as numbers for a loop.

    Attributes:
        place_bits: uint8; an octave has 2**place_bits places.
        sign_bit: uint8, added to the codes of negative numbers.
        edges: leading eight bits of the mantissas from which on the next place is nearer.
        starts: those of the levels beyond the first of an octave.
        ones: one for each edge.
        rises: from each level to the next, in its seven mantissa bits.
        first_gap: how far it is from the first level to the second, in the last of those bits.
        gap_rises: how much farther it is from each of ``starts`` on to the next level.
        places: the numbers of the places beyond the first.
        key: names the random numbers.
    """

    place_bits: Any
    sign_bit: Any
    edges: Any
    starts: Any
    ones: Any
    rises: Any
    first_gap: Any
    gap_rises: Any
    places: Any
    key: int


@loop
def nearest(
    values: Any, inverses: Any, ahead: Any, octaves: Octaves, codes: Any, spare: Any
) -> None:
    """The code of the level nearest to each value, of two equally near ones the larger.

    Args:
        values: float32, blocks of equal width.
        inverses: float32, what to multiply each block with.
        ahead: bytes that are prefetched meanwhile.
        octaves: the levels.
        codes: uint8, one for each value.
        spare: uint8, as large.
    """
    _split(values, inverses, ahead, _HALF_BITS, octaves, codes, spare)
    for k in range(np.uint64(values.size)):
        number = np.uint8((codes[k] & _UNSIGNED) + climb(spare[k], octaves.edges, octaves.ones))
        codes[k] = _signed(number, codes[k], octaves.sign_bit)


@loop
def one_of_two(
    values: Any,
    tile: tiles.Tile,
    inverses: Any,
    ahead: Any,
    octaves: Octaves,
    codes: Any,
    spare: Any,
) -> None:
    """The code of one of the two levels next to each value, by distance; as for `nearest`.

    The way from the level below is compared with a random part of the gap. Below 1 they are the
    value itself and 1, from there on both are counted in the bits that levels have: every number is
    exact.
    """
    mantissas, gaps = spare[: values.size], spare[values.size : 2 * values.size]
    _split(values, inverses, ahead, _ONE_BITS, octaves, codes, mantissas)
    for k in range(np.uint64(values.size)):
        number, mantissa = np.uint8(codes[k] & _UNSIGNED), mantissas[k]
        gap = np.uint8(octaves.first_gap + climb(mantissa, octaves.starts, octaves.gap_rises))
        gaps[k] = gap if number > 0 else _ONE
        codes[k] = np.uint8(codes[k] + climb(mantissa, octaves.starts, octaves.ones[1:]))
        mantissas[k] = climb(mantissa, octaves.starts, octaves.rises)
    ups = spare[2 * values.size : 3 * values.size]
    half, pairs = (tile.width + 1) // 2, tile.width // 2
    for block in range(inverses.size):
        inverse, base = inverses[block], block_word(octaves.key, tile.block + block)
        low = np.uint64(block * tile.width)
        high = low + np.uint64(half)
        for i in range(np.uint64(half)):
            random, j = centred_low(random_word(base, i)) + _HALF, low + i
            ups[j] = _goes_up(values[j] * inverse, mantissas[j], gaps[j], random)
        for i in range(np.uint64(pairs)):
            random, j = centred_high(random_word(base, i)) + _HALF, high + i
            ups[j] = _goes_up(values[j] * inverse, mantissas[j], gaps[j], random)
    for k in range(np.uint64(values.size)):
        number = np.uint8((codes[k] & _UNSIGNED) + ups[k])
        codes[k] = _signed(number, codes[k], octaves.sign_bit)


@loop
def _split(
    values: Any,
    inverses: Any,
    ahead: Any,
    first_bits: Any,
    octaves: Octaves,
    numbers: Any,
    mantissas: Any,
) -> None:
    """Two bytes for each value: see the head of this file.

    Args:
        first_bits: float bits from which on a magnitude reaches level 1.
    """
    width, ahead_bytes = values.size // inverses.size, ahead.size // inverses.size
    for block in range(inverses.size):
        inverse = inverses[block]
        prefetch(ahead, block * ahead_bytes, (block + 1) * ahead_bytes)
        for k in range(np.uint64(block * width), np.uint64((block + 1) * width)):
            bits = np.float32(values[k] * inverse).view(np.int32)
            magnitude = np.int32(bits & _MAGNITUDE)
            above = magnitude if magnitude > _ONE_BITS else _ONE_BITS
            above = np.int32((above if above < _LAST_BITS else _LAST_BITS) - _ONE_BITS)
            octave = left(np.int32(above >> _MANTISSA_BITS), octaves.place_bits)
            number = np.int32(octave + np.int32(magnitude >= first_bits))
            sign = np.int32(bits >> np.int32(24)) & np.int32(_SIGN)
            numbers[k] = np.uint8(number | sign)
            mantissas[k] = np.uint8(above >> np.int32(15))


@element
def _signed(number: Any, signed: Any, sign_bit: Any) -> Any:
    """The code as it is stored: at most the top one, and with its sign unless it is 0."""
    top = np.uint8(sign_bit - _ONE)
    code = number if number < top else top
    sign = sign_bit if signed >= _SIGN else np.uint8(0)
    return np.uint8(code | (sign if code > 0 else np.uint8(0)))


@element
def _goes_up(units: Any, below: Any, gap: Any, random: Any) -> Any:
    """Whether a value leaves the level below by more than ``random`` gaps."""
    bits = np.float32(units).view(np.int32)
    magnitude = np.int32(bits & _MAGNITUDE)
    start = np.int32(np.int32(below) << _LEVEL_SHIFT)
    way = np.float32(np.int32(np.int32(magnitude & _MANTISSA) - start)) * _PER_LEVEL_BIT
    way = way if magnitude >= _ONE_BITS else magnitude.view(np.float32)
    return np.uint8(way > random * np.float32(gap))


@loop
def spread(codes: Any, steps: Any, octaves: Octaves, target: tiles.Target, spare: Any) -> None:
    """The level of each code times the step of its block into ``target``.

    Args:
        codes: uint8, one for each value.
        steps: float32, of each block.
        octaves: the levels.
        target: where the values go.
        spare: uint8, two for each value.
    """
    width, out, size = target.width, target.values, steps.size * target.width
    exponents, mantissas = spare[:size], spare[size : 2 * size]
    last = np.uint8(left(_ONE, octaves.place_bits) - _ONE)
    for k in range(np.uint64(size)):
        number = np.uint8(codes[k] & np.uint8(octaves.sign_bit - _ONE))
        counted = np.uint8(number + last)
        exponent = np.uint8(right(counted, octaves.place_bits) + _EXPONENT_BELOW_ONE)
        exponents[k] = exponent if number > 0 else np.uint8(0)
        mantissa = climb(np.uint8(counted & last), octaves.places, octaves.rises)
        mantissa = mantissa if number > 0 else np.uint8(0)
        sign = _SIGN if codes[k] >= octaves.sign_bit else np.uint8(0)
        mantissas[k] = np.uint8(mantissa | sign)
    for block in range(steps.size):
        step = steps[block]
        if target.adds:
            for k in range(np.uint64(block * width), np.uint64((block + 1) * width)):
                out[k] += _level(exponents[k], mantissas[k]) * step
        else:
            for k in range(np.uint64(block * width), np.uint64((block + 1) * width)):
                out[k] = _level(exponents[k], mantissas[k]) * step
        tiles.finish_block(target, block)


@element
def _level(exponent: Any, signed: Any) -> Any:
    """The float32 of an exponent as it is stored, and of a sign before seven mantissa bits."""
    mantissa = np.int32(np.int32(signed & _UNSIGNED) << _LEVEL_SHIFT)
    sign = np.int32(np.int32(signed & _SIGN) << np.int32(24))
    return np.int32(np.int32(np.int32(exponent) << _MANTISSA_BITS) | mantissa | sign).view(
        np.float32
    )
