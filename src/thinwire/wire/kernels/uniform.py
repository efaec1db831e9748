"""The family ``int``, tile by tile.

Encoding a tile: widen 16-bit floats, find the scales, round to codes of one byte, pack the bytes
into planes. Decoding goes backwards, and adds the payloads of all ranks up before it moves on.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from thinwire.wire.kernels import rounding, scales, tiles
from thinwire.wire.kernels.compiled import entry, loop
from thinwire.wire.kernels.memory import bytes_at
from thinwire.wire.kernels.planes import pack, unpack
from thinwire.wire.scales import FLOAT32_MAX

__all__ = ["UniformLevels", "decode", "encode"]

_HALF = np.float32(0.5)
_LARGEST = np.float32(FLOAT32_MAX)
_LOWEST_BFLOAT16 = np.int32(-0x00810000)  # the bits of the most negative one, 0xFF7F0000


class UniformLevels(NamedTuple):
    """`thinwire.wire.levels.Levels` and the random parts of one call, as numbers for a loop.

    Attributes:
        codes: which codes there are.
        offset: float32, added to a code to store it without sign.
        span: float32, what the magnitude or range of a block is divided by to get the scale.
        unit: float32, 1, or 1/2 for ``affine``, which works at half size.
        shift: float32, of the lattice.
        added, mask, largest: how `thinwire.wire.scales.ScaleRule` rounds.
        narrow: zero points have 16 bits.
        affine: there are zero points.
        stochastic: rounding is random.
        key: names the random numbers.
    """

    codes: rounding.Codes
    offset: Any
    span: Any
    unit: Any
    shift: Any
    added: int
    mask: int
    largest: int
    narrow: bool
    affine: bool
    stochastic: bool
    key: int


class _Scratch(NamedTuple):
    """Memory for one tile, taken once per call."""

    codes: Any
    steps: Any
    zeros: Any
    finite: Any


@entry
def encode(
    x: Any, out: Any, plan: tiles.Plan, levels: UniformLevels, first: int, last: int
) -> None:
    """Encode blocks ``first`` to ``last`` of the bytes ``x`` of a flat tensor."""
    tile_blocks = tiles.blocks_per_tile(plan, tiles.ENCODE_TILE_ELEMENTS)
    own_values = tiles.values_scratch(plan, tile_blocks)
    scratch = _scratch(tile_blocks, plan)
    step_bytes = tiles.element_bytes(plan)
    block = first
    while block < last:
        tile = tiles.next_tile(plan, block, last, tile_blocks)
        start = block * plan.block * step_bytes
        stop = start + tile.num_blocks * tile.width * step_bytes
        values = tiles.load_values(x[start:stop], plan, tile, own_values)
        ahead = x[stop : stop + (stop - start)]
        packed = tiles.codes_of(out, plan, tile)
        codes = packed
        if plan.bits != 8:
            codes = scratch.codes[: tile.num_blocks * tiles.padded(tile.width)]
            codes[tile.num_blocks * tile.width :] = 0
        _encode_tile(values, tile, out, plan, levels, ahead, scratch, codes)
        if plan.bits != 8:
            pack(codes, tiles.padded(tile.width), tile.width, plan.bits, packed)
        block += tile.num_blocks


@loop
def _scratch(tile_blocks: int, plan: tiles.Plan) -> _Scratch:
    return _Scratch(
        np.empty(0 if plan.bits == 8 else tile_blocks * plan.block, np.uint8),
        np.empty(tile_blocks, np.float32),
        np.zeros(tile_blocks, np.float32),
        np.empty(tile_blocks, np.int32),
    )


@loop
def _encode_tile(
    values: Any,
    tile: tiles.Tile,
    out: Any,
    plan: tiles.Plan,
    levels: UniformLevels,
    ahead: Any,
    scratch: _Scratch,
    codes: Any,
) -> None:
    """Scales into the payload, and codes of one byte each into ``codes``."""
    steps, zeros = scratch.steps[: tile.num_blocks], scratch.zeros[: tile.num_blocks]
    finite = scratch.finite[: tile.num_blocks]
    soon, later = ahead[: ahead.size // 2], ahead[ahead.size // 2 :]
    if levels.affine:
        scales.extremes(values, tile.width, soon, zeros.view(np.int32), finite)
        _affine_scales(zeros, finite, levels, steps)
        scales.store_scales(zeros, tile.block, tiles.zeros_of(out, plan), plan.num_blocks)
        for i in range(tile.num_blocks):
            zeros[i] *= levels.unit
    else:
        scales.magnitudes(values, tile.width, soon, finite)
        _symmetric_scales(finite, levels, steps)
    scales.store_scales(steps, tile.block, tiles.scales_of(out, plan), plan.num_blocks)
    scales.invert(steps, np.float32(1) / levels.unit)
    if levels.stochastic:
        rounding.stochastic(values, tile.width, zeros, steps, levels, tile.block, later, codes)
    else:
        rounding.nearest(values, tile.width, zeros, steps, levels, later, codes)
    scales.clear_codes(finite, codes)


@loop
def _symmetric_scales(magnitudes: Any, levels: UniformLevels, out: Any) -> None:
    floats = magnitudes.view(np.float32)
    for i in range(out.size):
        out[i] = floats[i] / levels.span
    scales.round_scales(out, magnitudes, levels.added, levels.mask, levels.largest)


@loop
def _affine_scales(zeros: Any, highest: Any, levels: UniformLevels, out: Any) -> None:
    """Round the zero points in place and derive the scales. ``highest`` holds float bits."""
    bits, floats = zeros.view(np.int32), highest.view(np.float32)
    for i in range(zeros.size):
        zeros[i] = zeros[i] + np.float32(0)  # no negative zero
        if levels.narrow:
            rounded = np.int32(bits[i] + np.int32(0xFFFF)) if bits[i] < 0 else bits[i]
            rounded = np.int32(rounded & np.int32(-0x10000))
            bits[i] = min(rounded, _LOWEST_BFLOAT16) if rounded < 0 else rounded
        out[i] = (floats[i] * _HALF - zeros[i] * _HALF) / levels.span * np.float32(2)
    scales.round_scales(out, highest, levels.added, levels.mask, levels.largest)


@entry
def decode(
    addresses: Any,
    shifts: Any,
    size: int,
    out: Any,
    plan: tiles.Plan,
    levels: UniformLevels,
    first: int,
    last: int,
) -> None:
    """Decode and sum blocks ``first`` to ``last`` of several payloads of ``size`` bytes.

    Args:
        addresses: int64, where the payloads lie; their values are summed in this order.
        shifts: float32, the shift of each.
        out: the bytes of a flat tensor; float32 when there are several payloads.
    """
    tile_blocks = tiles.blocks_per_tile(plan, tiles.DECODE_TILE_ELEMENTS)
    own_values = tiles.values_scratch(plan, tile_blocks)
    scratch = _scratch(tile_blocks, plan)
    step_bytes = tiles.element_bytes(plan)
    block = first
    while block < last:
        tile = tiles.next_tile(plan, block, last, tile_blocks)
        size_of_tile = tile.num_blocks * tile.width
        start = block * plan.block * step_bytes
        target = out[start : start + size_of_tile * step_bytes]
        values = tiles.values_to_fill(target, plan, tile, own_values)
        for index in range(addresses.size):
            payload = bytes_at(addresses[index], size)
            shift = shifts[index]
            _decode_tile(payload, tile, plan, levels, shift, index > 0, scratch, values)
        tiles.finish_values(values, target, plan, tile, addresses.size > 1)
        block += tile.num_blocks


@loop
def _decode_tile(
    payload: Any,
    tile: tiles.Tile,
    plan: tiles.Plan,
    levels: UniformLevels,
    shift: Any,
    add: bool,
    scratch: _Scratch,
    values: Any,
) -> None:
    """Decode a tile into ``values``, or add it to them."""
    steps, zeros = scratch.steps[: tile.num_blocks], scratch.zeros[: tile.num_blocks]
    codes = tiles.codes_of(payload, plan, tile)
    if plan.bits != 8:
        packed, stride = codes, tiles.padded(tile.width)
        codes = scratch.codes[: tile.num_blocks * stride]
        unpack(packed, stride, tile.width, plan.bits, codes)
    scales.load_scales(tiles.scales_of(payload, plan), plan.num_blocks, tile.block, steps)
    if levels.affine:
        scales.load_scales(tiles.zeros_of(payload, plan), plan.num_blocks, tile.block, zeros)
        _affine_values(codes, zeros, steps, add, tile.width, values)
    else:
        _symmetric_values(codes, steps, levels.offset, shift, add, tile.width, values)


@loop
def _symmetric_values(
    codes: Any, steps: Any, offset: Any, shift: Any, add: bool, width: int, out: Any
) -> None:
    for block in range(steps.size):
        step, first = steps[block], np.uint64(block * width)
        if add:
            for i in range(width):
                k = first + np.uint64(i)
                out[k] += (np.float32(codes[k]) - offset + shift) * step
        else:
            for i in range(width):
                k = first + np.uint64(i)
                out[k] = (np.float32(codes[k]) - offset + shift) * step


@loop
def _affine_values(codes: Any, zeros: Any, steps: Any, add: bool, width: int, out: Any) -> None:
    for block in range(steps.size):
        zero, step = zeros[block] * _HALF, steps[block] * _HALF
        first = np.uint64(block * width)
        if add:
            for i in range(width):
                k = first + np.uint64(i)
                out[k] += _doubled(zero + np.float32(codes[k]) * step)
        else:
            for i in range(width):
                k = first + np.uint64(i)
                out[k] = _doubled(zero + np.float32(codes[k]) * step)


@loop
def _doubled(value: Any) -> Any:
    """Twice the value, at most the largest float32; NaN stays."""
    doubled = value * np.float32(2)
    return _LARGEST if doubled > _LARGEST else doubled
