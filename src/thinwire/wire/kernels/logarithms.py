"""The family ``log``: codes from the bits of a float, and back.

note [octaves]
Levels and the edges between them have the same mantissas in every octave. So the code of
``units = magnitude / scale`` is

    1 + exponent * places + how many mantissas of an octave it reaches

where an octave has as many places as levels. Below 1 there is one edge, 1/2. The other way, the
bits of a level are its octave and the mantissa of its place. Up to four places, comparisons
find the place; beyond, tables are quicker: levels and edges have eight bits of mantissa, so
that those bits say what is reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from thinwire.formats import WireFormat
from thinwire.wire.kernels import scales, tiles
from thinwire.wire.kernels.blocked import BlockedKernel, Work, addresses_of
from thinwire.wire.kernels.compiled import element, entry, loop
from thinwire.wire.kernels.memory import keep, prefetch
from thinwire.wire.kernels.random import block_word, centred_high, centred_low, random_word
from thinwire.wire.key import Key
from thinwire.wire.logarithm import LogLevels

__all__ = ["LogKernel"]

_MAGNITUDE = np.int32(0x7FFFFFFF)
_MANTISSA = np.int32(0x7FFFFF)
_MANTISSA_BITS = np.int32(23)
_ONE = np.int32(127)  # the exponent of 1.0 as it is stored
_HALF_BITS = np.int32(0x3F000000)
_HALF = np.float32(0.5)
_ONE_BITS = np.int32(0x3F800000)
_FEW_PLACES = 4
# What is left of a mantissa are its eight leading bits.
_TABLE_SHIFT = np.int32(15)


class _Levels(NamedTuple):
    """`thinwire.wire.logarithm.LogLevels` as numbers for a loop.

    Attributes:
        edges: int32 mantissas of the edges of an octave, as a tuple: loops over it are unrolled.
            Like ``rises``, the first four only.
        rises: int32, how far the mantissas of the levels rise above the one before, as a tuple.
        place_bits: int32; an octave has 2**place_bits places.
        rule: how scales are rounded.
        sign_bit: int32, added to the codes of negative numbers.
        stochastic: rounding is random.
        key: names the random numbers.
    """

    edges: Any
    rises: Any
    place_bits: Any
    rule: scales.Rule
    sign_bit: Any
    stochastic: bool
    key: int


class _Tables(NamedTuple):
    """What many places are looked up in.

    Attributes:
        reached: int32, [256], by the leading bits of a mantissa: how many edges it reaches, or how
            many levels if rounding is random.
        values: float32, by code: the level in units of the scale.
    """

    reached: Any
    values: Any


class LogKernel(BlockedKernel):
    """The family ``log``."""

    def __init__(self, fmt: WireFormat) -> None:
        super().__init__(fmt)
        levels = LogLevels.of(fmt)
        octave = levels.levels[1 : levels.per_octave + 1]
        ends = (*octave[1:], 2.0)
        edges = _mantissas([(low + high) / 2 for low, high in zip(octave, ends, strict=True)])
        starts = _mantissas(octave)
        reached = starts if fmt.is_stochastic else edges
        self._tables = _Tables(
            reached=np.searchsorted(reached, np.arange(256) << _TABLE_SHIFT, side="right").astype(
                np.int32
            ),
            values=np.array(levels.signed, np.float32),
        )
        self._levels = _Levels(
            edges=tuple(edges[:_FEW_PLACES]),
            rises=tuple(np.diff(starts, prepend=np.int32(0))[:_FEW_PLACES]),
            place_bits=np.int32(fmt.bits - 4),
            rule=scales.rule_of(levels.rule, levels.reach),
            sign_bit=np.int32(1 << fmt.bits - 1),
            stochastic="stochastic" in fmt.options,
            key=0,
        )

    def _encoder(self, x: Tensor, out: Tensor, plan: tiles.Plan, key: Key) -> Work:
        levels = self._levels
        if levels.stochastic:
            levels = levels._replace(key=key.signed_value)
        return partial(_encode_tiles, x.data_ptr(), out.data_ptr(), plan, levels, self._tables)

    def _decoder(self, payloads: Sequence[Tensor], out: Tensor, plan: tiles.Plan) -> Work:
        addresses, levels = addresses_of(payloads), self._levels
        return partial(_decode_tiles, addresses, out.data_ptr(), plan, levels, self._tables)


def _mantissas(numbers: Sequence[float]) -> Any:
    """The mantissa bits of numbers from 1 up to 2, int32."""
    return np.array(numbers, np.float32).view(np.int32) & _MANTISSA


@entry
def _encode_tiles(
    x: int,
    payload: int,
    plan: tiles.Plan,
    levels: _Levels,
    tables: _Tables,
    first: int,
    last: int,
) -> None:
    tile_blocks = tiles.blocks_per_tile(plan, tiles.ENCODE_TILE_ELEMENTS)
    memory = tiles.scratch_memory(plan, tile_blocks)
    scratch = tiles.scratch_in(memory, plan, tile_blocks)
    block = first
    while block < last:
        tile = tiles.next_tile(plan, block, last, tile_blocks)
        values = tiles.load_values(x, plan, tile, scratch)
        soon, later = tiles.halves_of_next(x, plan, tile)
        steps, finite = scratch.steps[: tile.num_blocks], scratch.finite[: tile.num_blocks]
        scales.magnitudes(values, tile.width, soon, finite)
        scales.scale_magnitudes(finite, levels.rule, steps)
        scales.store_scales(steps, tiles.scales_address(payload, plan, tile), plan.scale_bytes)
        scales.invert(steps, np.float32(1))
        packed = tiles.codes_of(payload, plan, tile)
        codes = tiles.codes_to_fill(packed, plan, tile, scratch)
        if levels.stochastic:
            _stochastic(values, tile, steps, levels, tables, later, codes)
        else:
            _nearest(values, tile.width, steps, levels, tables, later, codes)
        scales.clear_codes(finite, codes)
        tiles.finish_codes(codes, packed, plan, tile)
        block += tile.num_blocks
    keep(memory)


@loop
def _nearest(
    values: Any,
    width: int,
    inverses: Any,
    levels: _Levels,
    tables: _Tables,
    ahead: Any,
    codes: Any,
) -> None:
    """The nearest level of each value; prefetches ``ahead``."""
    few, ahead_bytes = _has_few_places(levels), ahead.size // inverses.size
    for block in range(inverses.size):
        inverse = inverses[block]
        prefetch(ahead, block * ahead_bytes, (block + 1) * ahead_bytes)
        if few:
            for k in range(np.uint64(block * width), np.uint64((block + 1) * width)):
                bits = np.float32(values[k] * inverse).view(np.int32)
                reached = np.int32(0)
                for edge in levels.edges:
                    reached = np.int32(reached + np.int32((bits & _MANTISSA) >= edge))
                codes[k] = _signed(_number(bits, reached, levels), bits, levels.sign_bit)
        else:
            for k in range(np.uint64(block * width), np.uint64((block + 1) * width)):
                bits = np.float32(values[k] * inverse).view(np.int32)
                reached = _looked_up(bits, tables)
                codes[k] = _signed(_number(bits, reached, levels), bits, levels.sign_bit)


@element
def _looked_up(bits: Any, tables: _Tables) -> Any:
    mantissa = np.uint32(np.uint32(bits) & np.uint32(_MANTISSA))
    return tables.reached[np.uint64(mantissa >> np.uint32(_TABLE_SHIFT))]


@loop
def _has_few_places(levels: _Levels) -> Any:
    return np.int32(1) << levels.place_bits <= _FEW_PLACES


@element
def _number(bits: Any, reached: Any, levels: _Levels) -> Any:
    """See [octaves]; 0 below 1/2, and 1 from there to 1.

    Products instead of choices, here and below: half the choices would be guessed wrong.
    """
    magnitude = np.int32(bits & _MAGNITUDE)
    octave = np.int32(np.int32(magnitude >> _MANTISSA_BITS) - _ONE)
    above_one = np.int32(np.int32(octave << levels.place_bits) + np.int32(reached))
    counted = np.int32(above_one * np.int32(magnitude >= _ONE_BITS))
    return np.int32(np.int32(counted + np.int32(1)) * np.int32(magnitude >= _HALF_BITS))


@element
def _signed(number: Any, bits: Any, sign_bit: Any) -> Any:
    """The code as it is stored: at most the top one, and with its sign unless it is 0."""
    code = np.int32(min(number, np.int32(sign_bit - np.int32(1))))
    sign = np.int32(np.int32(bits >> np.int32(31)) & sign_bit)
    return np.uint8(code | np.int32(sign * np.int32(code > np.int32(0))))


@loop
def _stochastic(
    values: Any,
    tile: tiles.Tile,
    inverses: Any,
    levels: _Levels,
    tables: _Tables,
    ahead: Any,
    codes: Any,
) -> None:
    """One of the two levels next to each value, by distance; prefetches ``ahead``."""
    width, ahead_bytes = tile.width, ahead.size // inverses.size
    pairs, half = width // 2, (width + 1) // 2
    for block in range(inverses.size):
        inverse = inverses[block]
        prefetch(ahead, block * ahead_bytes, (block + 1) * ahead_bytes)
        base = block_word(levels.key, tile.block + block)
        low = np.uint64(block * width)
        high = low + np.uint64(half)
        for i in range(np.uint64(half)):
            random = centred_low(random_word(base, i)) + _HALF
            codes[low + i] = _one_of_two(values[low + i] * inverse, random, levels, tables)
        for i in range(np.uint64(pairs)):
            random = centred_high(random_word(base, i)) + _HALF
            codes[high + i] = _one_of_two(values[high + i] * inverse, random, levels, tables)


@element
def _one_of_two(units: Any, random: Any, levels: _Levels, tables: _Tables) -> Any:
    """The code of the level below, or of the next one with a probability of the way to it."""
    bits = np.float32(units).view(np.int32)
    # Of levels, the first of an octave is reached by all, and 0 below 1.
    magnitude = np.int32(bits & _MAGNITUDE)
    number = np.int32(_number(bits, _looked_up(bits, tables), levels) - np.int32(1))
    top = np.int32(levels.sign_bit - np.int32(1))
    below = np.int32(min(np.int32(number * np.int32(magnitude >= _ONE_BITS)), top))
    above = np.int32(min(np.int32(below + np.int32(1)), top))
    low, high = tables.values[np.uint64(below)], tables.values[np.uint64(above)]
    goes_up = np.abs(units) - low > random * (high - low)
    return _signed(np.int32(below + np.int32(goes_up)), bits, levels.sign_bit)


@entry
def _decode_tiles(
    payloads: Any,
    out: int,
    plan: tiles.Plan,
    levels: _Levels,
    tables: _Tables,
    first: int,
    last: int,
) -> None:
    tile_blocks = tiles.blocks_per_tile(plan, tiles.DECODE_TILE_ELEMENTS)
    memory = tiles.scratch_memory(plan, tile_blocks)
    scratch = tiles.scratch_in(memory, plan, tile_blocks)
    block = first
    while block < last:
        tile = tiles.next_tile(plan, block, last, tile_blocks)
        target = tiles.target_of(out, plan, tile, scratch)
        steps = scratch.steps[: tile.num_blocks]
        for index in range(payloads.size):
            address = tiles.scales_address(payloads[index], plan, tile)
            scales.load_scales(address, plan.scale_bytes, steps)
            packed = tiles.codes_of(payloads[index], plan, tile)
            codes = tiles.load_codes(packed, plan, tile, scratch)
            own = tiles.turn_of(target, index, payloads.size)
            if _has_few_places(levels):
                _values(codes, steps, levels, own)
            else:
                _looked_up_values(codes, steps, tables.values, own)
        tiles.finish_tile(target, out, plan, tile, scratch, payloads.size > 1)
        block += tile.num_blocks
    tiles.finish_tensor(plan, memory)


@loop
def _values(codes: Any, steps: Any, levels: _Levels, target: tiles.Target) -> None:
    """The level of each code times the step of its block into ``target``."""
    width, out = target.width, target.values
    for block in range(steps.size):
        step = steps[block]
        if target.adds:
            for k in range(np.uint64(block * width), np.uint64((block + 1) * width)):
                out[k] += _level(codes[k], levels) * step
        else:
            for k in range(np.uint64(block * width), np.uint64((block + 1) * width)):
                out[k] = _level(codes[k], levels) * step
        tiles.finish_block(target, block)


@loop
def _looked_up_values(codes: Any, steps: Any, values: Any, target: tiles.Target) -> None:
    """The same, from the value of every code."""
    width, out = target.width, target.values
    for block in range(steps.size):
        step = steps[block]
        if target.adds:
            for k in range(np.uint64(block * width), np.uint64((block + 1) * width)):
                out[k] += values[codes[k]] * step
        else:
            for k in range(np.uint64(block * width), np.uint64((block + 1) * width)):
                out[k] = values[codes[k]] * step
        tiles.finish_block(target, block)


@element
def _level(code: Any, levels: _Levels) -> Any:
    """The level of a code in units of the scale: see [octaves]."""
    number = np.int32(np.int32(code) & np.int32(levels.sign_bit - np.int32(1)))
    # One octave more than number - 1: a difference beside a comparison with zero is taken for a
    # check of overflow, which is no vector code.
    last = np.int32((np.int32(1) << levels.place_bits) - np.int32(1))
    counted = np.int32(number + last)
    octave, place = np.int32(counted >> levels.place_bits), np.int32(counted & last)
    mantissa, own_place = np.int32(0), np.int32(0)
    for rise in levels.rises:
        mantissa = np.int32(mantissa + np.int32(rise * np.int32(place >= own_place)))
        own_place = np.int32(own_place + np.int32(1))
    exponent = np.int32(octave + np.int32(_ONE - np.int32(1)))
    bits = np.int32(np.int32(exponent << _MANTISSA_BITS) | mantissa)
    bits = bits if number > np.int32(0) else np.int32(0)
    sign = np.int32(-0x80000000) if np.int32(code) >= levels.sign_bit else np.int32(0)
    return np.int32(bits | sign).view(np.float32)
