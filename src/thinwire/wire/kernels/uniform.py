"""The family ``int``, tile by tile.

Encoding a tile: widen 16-bit floats; of each block find the scale and round to codes of one byte;
pack the bytes into planes. Decoding goes backwards, and adds the payloads of all ranks up before it
moves on.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from thinwire.wire.kernels import rounding, scales, tiles
from thinwire.wire.kernels.compiled import element, loop, tile_loop
from thinwire.wire.kernels.lines import stream_values
from thinwire.wire.kernels.memory import (
    STRIP,
    bytes_at,
    floats_at,
    prefetch,
    prefetch_to_write,
)
from thinwire.wire.kernels.percentiles import clip_extremes, clip_magnitudes
from thinwire.wire.kernels.random import block_word
from thinwire.wire.kernels.walk import decoder_of, encoder_of
from thinwire.wire.scales import FLOAT32_MAX

__all__ = ["UniformLevels", "decode", "encode", "round_tile"]

# Eight blocks of the usual width: enough to find scales side by side, few enough that what
# is asked for meanwhile, and what is written, comes evenly.
_GROUP_ELEMENTS = 1 << 10
_GROUPS_AHEAD = 4  # that lines of the payload are asked for

_HALF = np.float32(0.5)
_LARGEST = np.float32(FLOAT32_MAX)
_ZERO_POINT = np.uint8(0x80)  # in the points of int8, stored without sign
_LOWEST_BFLOAT16 = np.int32(-0x00810000)  # the bits of the most negative one, 0xFF7F0000


class UniformLevels(NamedTuple):
    """`thinwire.wire.levels.Levels` and the random parts of one call, as numbers for a loop.

    Attributes:
        codes: which codes there are.
        offset: float32, added to a code to store it without sign.
        rule: how scales are rounded.
        unit: float32, 1, or 1/2 for ``affine``, which works at half size.
        shift: float32, of the lattice, when it is encoded.
        narrow: zero points have 16 bits.
        affine: there are zero points.
        learned: codes are numbers of levels, which the head of a payload lists as points of int8.
        numbers: uint8, by point, the number of the nearest level; empty unless ``learned``.
        stochastic: rounding is random.
        key: names the random numbers.
    """

    codes: rounding.Codes
    offset: Any
    rule: scales.Rule
    unit: Any
    shift: Any
    narrow: bool
    affine: bool
    learned: bool
    numbers: Any
    stochastic: bool
    key: int


@tile_loop
def encode_tile(site: tiles.Site, levels: UniformLevels) -> None:
    """Encode a tile."""
    if site.plan.bits == 4 and site.tile.width % STRIP == 0 and not levels.learned:
        round_tile(site, levels, tiles.codes_of(site), True)
        return
    codes = tiles.codes_to_fill(site)
    round_tile(site, levels, codes, False)
    if levels.learned:
        for k in range(np.uint64(codes.size)):
            codes[k] = levels.numbers[codes[k]]
    tiles.finish_codes(codes, site)


@tile_loop
def round_tile(site: tiles.Site, levels: UniformLevels, codes: Any, packs: bool) -> None:
    """Scales into the payload, and codes of even levels into ``codes``.

    They take one byte each, or half of one if ``packs``.
    """
    if site.tile.width == STRIP:
        _round_groups(site, STRIP, levels, codes, packs)  # the usual width: all lengths are known
    else:
        _round_groups(site, site.tile.width, levels, codes, packs)


@tile_loop
def _round_groups(
    site: tiles.Site, width: int, levels: UniformLevels, codes: Any, packs: bool
) -> None:
    """The same for blocks of a width, a group of them at a time.

    A block alone would have its values wait for its scale, which takes as long to find as its
    codes. Those of a group are found side by side, and the values are still in the nearest cache.
    """
    tile, plan, scratch = site.tile, site.plan, site.scratch
    blocks, row = max(1, _GROUP_ELEMENTS // width), codes.size // tile.num_blocks
    for first in range(0, tile.num_blocks, blocks):
        last = min(first + blocks, tile.num_blocks)
        part = tiles.part_of(site, first, last)
        values, ahead = tiles.load_values(part), tiles.ahead_of(part)
        soon = first + _GROUPS_AHEAD * blocks
        prefetch_to_write(codes, soon * row, (soon + last - first) * row)
        if tiles.num_clipped(site) > 0:
            _clip(part, values, first, levels.affine)
        else:
            _find_extents(part, values, width, first, levels.affine)
        _find_scales(scratch, first, last, levels)
        _find_codes(part, values, width, first, levels, ahead, codes, packs)
    if levels.affine:
        zeros = scratch.zeros[: tile.num_blocks]
        scales.store_scales(zeros, tiles.zeros_address(site), plan.scale_bytes)
    steps = scratch.steps[: tile.num_blocks]
    scales.store_scales(steps, tiles.scales_address(site), plan.scale_bytes)
    scales.clear_codes(scratch.finite[: tile.num_blocks], codes)


@element
def _find_extents(part: tiles.Site, values: Any, width: int, first: int, affine: bool) -> None:
    """How far the values of blocks from ``first`` on reach, into scratch."""
    bits = values.view(np.int32)
    lowest, finite = part.scratch.zeros.view(np.int32), part.scratch.finite
    for index in range(np.uint64(part.tile.num_blocks)):
        start, block = index * np.uint64(width), np.uint64(first) + index
        if affine:
            lowest[block], finite[block] = scales.smallest_and_largest(bits, start, width)
        else:
            finite[block] = scales.largest_magnitude(bits, start, width)


@element
def _find_scales(scratch: tiles.Scratch, first: int, last: int, levels: UniformLevels) -> None:
    """What blocks ``first`` to ``last`` need to become codes, from how far they reach."""
    steps, inverses, finite = scratch.steps, scratch.inverses, scratch.finite
    zeros, lowest = scratch.zeros, scratch.zeros.view(np.int32)
    rule, numerator = levels.rule, np.float32(1) / levels.unit
    if levels.affine:
        for block in range(np.uint64(first), np.uint64(last)):
            zero = _zero_point(lowest[block], levels.narrow)
            raw = _range(zero, finite[block]) / rule.span * np.float32(2)
            step = scales.scale_of(raw, finite[block], rule)
            zeros[block], steps[block] = zero, step
            inverses[block] = scales.inverse_of(step, numerator)
    else:
        for block in range(np.uint64(first), np.uint64(last)):
            raw = np.int32(finite[block]).view(np.float32) / rule.span
            step = scales.scale_of(raw, finite[block], rule)
            steps[block] = step
            inverses[block] = scales.inverse_of(step, numerator)


@element
def _find_codes(
    part: tiles.Site,
    values: Any,
    width: int,
    first: int,
    levels: UniformLevels,
    ahead: Any,
    codes: Any,
    packs: bool,
) -> None:
    """The codes of blocks from ``first`` on."""
    zeros, inverses = part.scratch.zeros, part.scratch.inverses
    row = np.uint64(width // 2 if packs else width)
    for index in range(np.uint64(part.tile.num_blocks)):
        start, block = index * np.uint64(width), np.uint64(first) + index
        zero, word = zeros[block] * levels.unit, np.uint32(0)
        if levels.stochastic:
            word = block_word(levels.key, part.tile.block + index)
        one = rounding.Block(values, start, block * row, zero, inverses[block], word)
        if levels.stochastic and packs:
            rounding.stochastic_packed(one, width, levels, ahead, codes)
        elif levels.stochastic:
            rounding.stochastic(one, width, levels, ahead, codes)
        elif packs:
            rounding.nearest_packed(one, width, levels, ahead, codes)
        else:
            rounding.nearest(one, width, levels, ahead, codes)


@loop
def _clip(part: tiles.Site, values: Any, first: int, affine: bool) -> None:
    """How far the values of each block reach when the outermost are cut off, into scratch."""
    tile, scratch, clipped = part.tile, part.scratch, tiles.num_clipped(part)
    finite = scratch.finite[first : first + tile.num_blocks]
    if affine:
        lowest = scratch.zeros[first : first + tile.num_blocks].view(np.int32)
        scales.extremes(values, tile.width, lowest, finite)
        clip_extremes(values, clipped // 2, scratch.spare, lowest, finite)
    else:
        scales.magnitudes(values, tile.width, scales.NOTHING, finite)
        clip_magnitudes(values, clipped, scratch.spare, finite)


@element
def _zero_point(low: Any, is_narrow: bool) -> Any:
    """The zero point, float32, at or below the smallest value, which is given as float bits."""
    zero = np.float32(np.int32(low).view(np.float32) + np.float32(0))  # no negative zero
    if not is_narrow:
        return zero
    bits = np.int32(zero.view(np.int32))
    rounded = np.int32(bits + np.int32(0xFFFF)) if bits < 0 else bits
    rounded = np.int32(rounded & np.int32(-0x10000))
    lowest = rounded if rounded < _LOWEST_BFLOAT16 else _LOWEST_BFLOAT16
    return np.int32(lowest if rounded < 0 else rounded).view(np.float32)


@element
def _range(zero: Any, high: Any) -> Any:
    """Half of what lies between a zero point and the largest value, given as float bits."""
    return np.int32(high).view(np.float32) * _HALF - zero * _HALF


@tile_loop
def decode_tile(site: tiles.Site, levels: UniformLevels, target: tiles.Target) -> None:
    """Decode a tile of one payload into ``target``."""
    tile, plan, scratch = site.tile, site.plan, site.scratch
    steps, zeros = scratch.steps[: tile.num_blocks], scratch.zeros[: tile.num_blocks]
    scales.load_scales(tiles.scales_address(site), plan.scale_bytes, steps)
    packed_bytes = tiles.codes_of(site).size
    ahead = bytes_at(tiles.codes_address(site) + packed_bytes, packed_bytes)
    codes = tiles.load_codes(site)
    if levels.affine:
        scales.load_scales(tiles.zeros_address(site), plan.scale_bytes, zeros)
        _affine_values(codes, zeros, steps, ahead, target)
        return
    shift = np.float32(0)
    if levels.learned:
        head = bytes_at(site.payload, plan.scales_at)
        for k in range(np.uint64(codes.size)):
            codes[k] = head[codes[k]] ^ _ZERO_POINT
    elif plan.scales_at:
        shift = floats_at(site.payload, 1)[0]
    _symmetric_values(codes, steps, levels.offset, shift, ahead, target)


@loop
def _symmetric_values(
    codes: Any, steps: Any, offset: Any, shift: Any, ahead: Any, target: tiles.Target
) -> None:
    """``(code - offset + shift) * step`` into ``target``; prefetches ``ahead``.

    Several payloads take turns, tile by tile, too quickly for the processor to guess what it will
    need next.
    """
    width, out, ahead_bytes = target.width, target.values, ahead.size // steps.size
    for block in range(steps.size):
        step, first = steps[block], np.uint64(block * width)
        prefetch(ahead, block * ahead_bytes, (block + 1) * ahead_bytes)
        if target.address:
            stream_values(codes, block, target, step, offset, shift)
        elif target.adds:
            for i in range(width):
                k = first + np.uint64(i)
                out[k] += (np.float32(codes[k]) - offset + shift) * step
        else:
            for i in range(width):
                k = first + np.uint64(i)
                out[k] = (np.float32(codes[k]) - offset + shift) * step


@loop
def _affine_values(codes: Any, zeros: Any, steps: Any, ahead: Any, target: tiles.Target) -> None:
    """``zero + code * step`` at half size, doubled, into ``target``; prefetches ``ahead``."""
    width, out, ahead_bytes = target.width, target.values, ahead.size // steps.size
    for block in range(steps.size):
        zero, step = zeros[block] * _HALF, steps[block] * _HALF
        first = np.uint64(block * width)
        prefetch(ahead, block * ahead_bytes, (block + 1) * ahead_bytes)
        if target.adds:
            for i in range(width):
                k = first + np.uint64(i)
                out[k] += _doubled(zero + np.float32(codes[k]) * step)
        else:
            for i in range(width):
                k = first + np.uint64(i)
                out[k] = _doubled(zero + np.float32(codes[k]) * step)
        tiles.finish_block(target, block)


@element
def _doubled(value: Any) -> Any:
    """Twice the value, at most the largest float32; NaN stays."""
    doubled = value * np.float32(2)
    return _LARGEST if doubled > _LARGEST else doubled


encode, decode = encoder_of("int", encode_tile), decoder_of("int", decode_tile)
