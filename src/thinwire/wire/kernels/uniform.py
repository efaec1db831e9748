"""The family ``int``, tile by tile: a tile is as many blocks as stay in the nearest cache.

Encoding a tile: widen 16-bit floats, find the scales, round to codes of one byte, pack the bytes
into planes, while the next tile is already on its way from memory. Decoding goes backwards.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from thinwire.wire.kernels import rounding
from thinwire.wire.kernels.compiled import entry, loop
from thinwire.wire.kernels.halves import FLOAT32, narrow, widen
from thinwire.wire.kernels.planes import pack, unpack
from thinwire.wire.kernels.scales import (
    INFINITY,
    extremes,
    load_scales,
    magnitudes,
    round_scales,
    store_scales,
)
from thinwire.wire.scales import FLOAT32_MAX

__all__ = ["Plan", "UniformLevels", "decode", "encode"]

# 16 KiB of float32: with the codes and the next tile, it fits the smallest first-level caches.
_TILE_ELEMENTS = 1 << 15

_HALF = np.float32(0.5)
_LARGEST = np.float32(FLOAT32_MAX)


class Plan(NamedTuple):
    """Where things lie. Everything in bytes but ``numel`` and ``block``, which are elements."""

    numel: int
    block: int
    kind: int
    bits: int
    num_blocks: int
    block_bytes: int
    scales_at: int
    zeros_at: int
    codes_at: int
    codes_end: int


class UniformLevels(NamedTuple):
    """`thinwire.wire.levels.Levels` and the random parts of one call, as numbers for a loop."""

    top: Any
    offset: Any
    span: Any
    shift: Any
    added: int
    mask: int
    largest: int
    narrow: bool
    affine: bool
    stochastic: bool
    key: int


@entry
def encode(x: Any, out: Any, plan: Plan, levels: UniformLevels, first: int, last: int) -> None:
    """Encode blocks ``first`` to ``last`` of the bytes ``x`` of a flat tensor."""
    tile_blocks = max(1, _TILE_ELEMENTS // plan.block)
    tile_elements = tile_blocks * plan.block
    element_bytes = 4 if plan.kind == FLOAT32 else 2
    widened = np.empty(0 if plan.kind == FLOAT32 else tile_elements, np.float32)
    codes = np.empty(0 if plan.bits == 8 else tile_elements, np.uint8)
    scales, zeros = np.empty(tile_blocks, np.float32), np.empty(tile_blocks, np.float32)
    finite = np.empty(tile_blocks, np.int32)
    full = plan.numel // plan.block
    block = first
    while block < last:
        count = min(tile_blocks, min(last, full) - block) if block < full else 1
        width = plan.block if block < full else plan.numel - block * plan.block
        stride = plan.block if block < full else (width + 7) // 8 * 8
        start = block * plan.block * element_bytes
        stop = start + count * width * element_bytes
        ahead = x[stop : stop + (stop - start)]
        if plan.kind == FLOAT32:
            values = x[start:stop].view(np.float32)
        else:
            values = widened[: count * width]
            widen(x[start:stop].view(np.uint16), plan.kind, values)
        packed = _packed_of(out, plan, block, count)
        if plan.bits == 8:
            tile_codes = packed
        else:
            tile_codes = codes[: count * stride]
            tile_codes[(count - 1) * stride + width :] = 0
        _encode_tile(
            values,
            width,
            out,
            plan,
            levels,
            block,
            scales[:count],
            zeros[:count],
            finite[:count],
            ahead,
            tile_codes,
        )
        if plan.bits != 8:
            pack(tile_codes, stride, width, plan.bits, packed)
        block += count


@loop
def _packed_of(payload: Any, plan: Plan, block: int, count: int) -> Any:
    """The bytes of the codes of ``count`` blocks."""
    start = plan.codes_at + block * plan.block_bytes
    return payload[start : min(start + count * plan.block_bytes, plan.codes_end)]


@loop
def _encode_tile(
    values: Any,
    width: int,
    out: Any,
    plan: Plan,
    levels: UniformLevels,
    block: int,
    scales: Any,
    zeros: Any,
    finite: Any,
    ahead: Any,
    codes: Any,
) -> None:
    """Scales into the payload, and codes of one byte each into ``codes``."""
    scale_section = out[plan.scales_at : plan.zeros_at]
    if levels.affine:
        extremes(values, width, zeros.view(np.int32), finite)
        _affine_scales(zeros, finite, levels, scales)
        store_scales(zeros, block, out[plan.zeros_at : plan.codes_at], plan.num_blocks)
        store_scales(scales, block, scale_section, plan.num_blocks)
        _invert(scales, np.float32(2))
        if levels.stochastic:
            rounding.affine_stochastic(values, width, zeros, scales, levels, block, ahead, codes)
        else:
            rounding.affine(values, width, zeros, scales, levels, ahead, codes)
    else:
        magnitudes(values, width, finite)
        _symmetric_scales(finite, levels, scales)
        store_scales(scales, block, scale_section, plan.num_blocks)
        _invert(scales, np.float32(1))
        if levels.stochastic:
            rounding.symmetric_stochastic(values, width, scales, levels, block, ahead, codes)
        else:
            rounding.symmetric(values, width, scales, levels, ahead, codes)
    _clear_codes(finite, codes)


@loop
def _symmetric_scales(magnitudes: Any, levels: UniformLevels, scales: Any) -> None:
    floats = magnitudes.view(np.float32)
    for i in range(scales.size):
        scales[i] = floats[i] / levels.span
    round_scales(scales, magnitudes, levels.added, levels.mask, levels.largest)


@loop
def _affine_scales(zeros: Any, highest: Any, levels: UniformLevels, scales: Any) -> None:
    """Round the zero points in place and derive the scales. ``highest`` holds float bits."""
    bits = zeros.view(np.int32)
    lowest_half = np.int32(-0x00810000)  # the bits of the most negative bfloat16, 0xFF7F0000
    for i in range(zeros.size):
        zeros[i] = zeros[i] + np.float32(0)
        if levels.narrow:
            rounded = np.int32(bits[i] + np.int32(0xFFFF)) if bits[i] < 0 else bits[i]
            rounded = np.int32(rounded & np.int32(-0x10000))
            bits[i] = min(rounded, lowest_half) if rounded < 0 else rounded
        high = highest.view(np.float32)[i]
        scales[i] = (high * _HALF - zeros[i] * _HALF) / levels.span * np.float32(2)
    round_scales(scales, highest, levels.added, levels.mask, levels.largest)


@loop
def _invert(scales: Any, numerator: Any) -> None:
    """Replace scales by what to multiply with; 0 and NaN by 0, so that every code becomes 0."""
    for i in range(scales.size):
        inverse = numerator / scales[i]
        scales[i] = inverse if scales[i] > np.float32(0) else np.float32(0)


@loop
def _clear_codes(finite: Any, codes: Any) -> None:
    largest = np.int32(0)
    for block in range(finite.size):
        largest = finite[block] if finite[block] > largest else largest
    if largest < INFINITY:
        return
    stride = codes.size // finite.size
    for block in range(finite.size):
        if finite[block] >= INFINITY:
            codes[block * stride : (block + 1) * stride] = 0


@entry
def decode(
    payload: Any, out: Any, plan: Plan, levels: UniformLevels, add: bool, first: int, last: int
) -> None:
    """Decode blocks ``first`` to ``last`` into the bytes ``out`` of a flat tensor, or add them."""
    tile_blocks = max(1, _TILE_ELEMENTS // plan.block)
    tile_elements = tile_blocks * plan.block
    element_bytes = 4 if plan.kind == FLOAT32 else 2
    wide = np.empty(0 if plan.kind == FLOAT32 else tile_elements, np.float32)
    codes = np.empty(0 if plan.bits == 8 else tile_elements, np.uint8)
    all_scales, all_zeros = np.empty(tile_blocks, np.float32), np.empty(tile_blocks, np.float32)
    full = plan.numel // plan.block
    block = first
    while block < last:
        count = min(tile_blocks, min(last, full) - block) if block < full else 1
        width = plan.block if block < full else plan.numel - block * plan.block
        stride = plan.block if block < full else (width + 7) // 8 * 8
        packed = _packed_of(payload, plan, block, count)
        if plan.bits == 8:
            stride, tile_codes = width, packed
        else:
            tile_codes = codes[: count * stride]
            unpack(packed, stride, width, plan.bits, tile_codes)
        start = block * plan.block * element_bytes
        target = out[start : start + count * width * element_bytes]
        values = target.view(np.float32) if plan.kind == FLOAT32 else wide[: count * width]
        scales, zeros = all_scales[:count], all_zeros[:count]
        load_scales(payload[plan.scales_at : plan.zeros_at], plan.num_blocks, block, scales)
        if levels.affine:
            load_scales(payload[plan.zeros_at : plan.codes_at], plan.num_blocks, block, zeros)
            _affine_values(tile_codes, stride, zeros, scales, add, width, values)
        else:
            _symmetric_values(tile_codes, stride, scales, levels, add, width, values)
        if plan.kind != FLOAT32:
            narrow(values, plan.kind, target.view(np.uint16))
        block += count


@loop
def _symmetric_values(
    codes: Any, stride: int, scales: Any, levels: UniformLevels, add: bool, width: int, out: Any
) -> None:
    offset, shift = np.float32(levels.offset), levels.shift
    for block in range(scales.size):
        scale = scales[block]
        source = codes[block * stride : block * stride + width]
        target = out[block * width : (block + 1) * width]
        if add:
            for i in range(target.size):
                target[i] += (np.float32(source[i]) - offset + shift) * scale
        else:
            for i in range(target.size):
                target[i] = (np.float32(source[i]) - offset + shift) * scale


@loop
def _affine_values(
    codes: Any, stride: int, zeros: Any, scales: Any, add: bool, width: int, out: Any
) -> None:
    for block in range(scales.size):
        zero, scale = zeros[block] * _HALF, scales[block] * _HALF
        source = codes[block * stride : block * stride + width]
        target = out[block * width : (block + 1) * width]
        if add:
            for i in range(target.size):
                value = (zero + np.float32(source[i]) * scale) * np.float32(2)
                target[i] += _LARGEST if value > _LARGEST else value
        else:
            for i in range(target.size):
                value = (zero + np.float32(source[i]) * scale) * np.float32(2)
                target[i] = _LARGEST if value > _LARGEST else value
