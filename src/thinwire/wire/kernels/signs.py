"""The family ``sign``: mean magnitudes by folding, and sign bits gathered into bytes.

The order of the sum is that of `thinwire.wire.reference.sign.fold`: each half is added to the other
until one number is left. The usual block of 128 has loops whose lengths the compiler knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from thinwire.formats import WireFormat
from thinwire.wire.kernels import scales, tiles
from thinwire.wire.kernels.blocked import BlockedKernel, Work, addresses_of
from thinwire.wire.kernels.compiled import element, loop, tile_loop
from thinwire.wire.kernels.memory import STRIP, floats_at, prefetch_strip
from thinwire.wire.kernels.walk import decoder_of, encoder_of
from thinwire.wire.key import Key
from thinwire.wire.scales import ScaleRule

__all__ = ["SignKernel"]

_SMALL_PART = np.float32(2.0**-24)
_LANES = 16
_ONE = np.int32(1)


class SignKernel(BlockedKernel):
    """The family ``sign``."""

    def __init__(self, fmt: WireFormat) -> None:
        super().__init__(fmt)
        rule = ScaleRule.for_levels(reach=1.0, narrow="bf16scale" in fmt.options, up=False)
        self._rule = scales.rule_of(rule, span=1.0)

    def _encoder(self, x: Tensor, out: Tensor, plan: tiles.Plan, key: Key) -> Work:
        del key
        return partial(_encode, x.data_ptr(), out.data_ptr(), plan, self._rule)

    def _decoder(self, payloads: Sequence[Tensor], out: Tensor, plan: tiles.Plan) -> Work:
        return partial(_decode, addresses_of(payloads), out.data_ptr(), plan, self._rule)


@tile_loop
def _encode_tile(site: tiles.Site, rule: scales.Rule) -> None:
    tile, scratch = site.tile, site.scratch
    values, packed = tiles.load_values(site), tiles.codes_of(site)
    done, bits = scratch.steps[: tile.num_blocks], scratch.finite[: tile.num_blocks]
    sums = floats_at(scratch.spare.ctypes.data, scratch.spare.size // 4)
    if tile.width == 8 * _LANES:
        _encode_128(values, tiles.ahead_of(site), sums, done, packed)
    else:
        _sums(values, tile.width, np.float32(1), sums, done)
        _signs(values.view(np.int32), tile.width, packed)
    _finish(values, tile.width, sums, done, bits)
    scales.clear_codes(bits, packed)
    scales.round_scales(done, bits, rule)
    scales.store_scales(done, tiles.scales_address(site), site.plan.scale_bytes)


@loop
def _finish(values: Any, width: int, sums: Any, means: Any, finite: Any) -> None:
    """Sums to means; float bits below `INFINITY` where the block is finite.

    A sum that is not finite is looked at again: it may have overflowed.
    """
    size = np.float32(width)
    for block in range(means.size):
        means[block] /= size
        finite[block] = 0
        if not means[block] < np.float32(np.inf):
            some = values[block * width : (block + 1) * width]
            _sums(some, width, _SMALL_PART, sums, means[block : block + 1])
            means[block] = means[block] / size / _SMALL_PART
            scales.magnitudes(some, width, scales.NOTHING, finite[block : block + 1])


@loop
def _encode_128(values: Any, ahead: Any, sums: Any, out: Any, packed: Any) -> None:
    """Sums of magnitudes and planes of sign bits, of blocks of 128: 16 bytes of signs a block.

    As `_sums` and `_signs` form them, with all lengths known. Meanwhile, bytes ``ahead`` are
    prefetched.
    """
    bits, ahead_bytes = values.view(np.int32), ahead.size // values.size
    for block in range(out.size):
        prefetch_strip(ahead, block * STRIP * ahead_bytes, ahead_bytes)
        v, s = np.uint64(block * 128), np.uint64(block * 16)
        for lane in range(16):
            i = v + np.uint64(lane)
            even = np.abs(values[i]) + np.abs(values[i + np.uint64(64)])
            even += np.abs(values[i + np.uint64(32)]) + np.abs(values[i + np.uint64(96)])
            odd = np.abs(values[i + np.uint64(16)]) + np.abs(values[i + np.uint64(80)])
            odd += np.abs(values[i + np.uint64(48)]) + np.abs(values[i + np.uint64(112)])
            sums[s + np.uint64(lane)] = even + odd
            byte = np.uint32(0)
            for place in range(8):
                sign = np.uint32(bits[i + np.uint64(16 * place)]) >> np.uint32(31)
                byte = np.uint32(byte | np.uint32(sign << np.uint32(place)))
            packed[s + np.uint64(lane)] = np.uint8(byte)
        out[block] = _sum_of_16(sums[block * 16 : block * 16 + 16])


@loop
def _sum_of_16(s: Any) -> Any:
    """Half added to half, in registers: short loops over memory take longer than all the rest."""
    a, b = (s[0] + s[8]) + (s[4] + s[12]), (s[2] + s[10]) + (s[6] + s[14])
    c, d = (s[1] + s[9]) + (s[5] + s[13]), (s[3] + s[11]) + (s[7] + s[15])
    return (a + b) + (c + d)


@loop
def _sums(values: Any, width: int, part: Any, sums: Any, out: Any) -> None:
    """The sum of magnitudes, times ``part``, of blocks of any width."""
    power = 1
    while power < width:
        power *= 2
    for block in range(out.size):
        start, half = np.uint64(block * width), power // 2
        paired = width - half if half else 0
        for i in range(np.uint64(width)):
            sums[i] = np.abs(values[start + i]) * part
        for i in range(np.uint64(paired)):
            sums[i] += sums[i + np.uint64(half)]
        while half > 1:
            half //= 2
            for i in range(np.uint64(half)):
                sums[i] += sums[i + np.uint64(half)]
        out[block] = sums[0]


@loop
def _signs(bits: Any, width: int, packed: Any) -> None:
    """Sign bits of blocks of any width as planes of width 1."""
    stretch = (width + 7) // 8
    for block in range(packed.size // stretch):
        p = np.uint64(block * stretch)
        for lane in range(stretch):
            packed[p + np.uint64(lane)] = 0
        for place in range(8):
            start = block * width + place * stretch
            stop = min(start + stretch, (block + 1) * width)
            for i in range(np.uint64(max(0, stop - start))):
                sign = np.uint32(bits[np.uint64(start) + i]) >> np.uint32(31)
                packed[p + i] = np.uint8(packed[p + i] | np.uint8(sign << np.uint32(place)))


@tile_loop
def _decode_tile(site: tiles.Site, rule: scales.Rule, target: tiles.Target) -> None:  # noqa: ARG001 - a scale says it all
    means = site.scratch.steps[: site.tile.num_blocks]
    scales.load_scales(tiles.scales_address(site), site.plan.scale_bytes, means)
    _spread_signs(tiles.codes_of(site), means, target)


@loop
def _spread_signs(packed: Any, means: Any, target: tiles.Target) -> None:
    """The mean of each block with the sign of each bit into ``target``."""
    width, out = target.width, target.values
    stretch = (width + 7) // 8
    for block in range(means.size):
        mean, p = means[block], np.uint64(block * stretch)
        for place in range(8):
            start = block * width + place * stretch
            size = np.uint64(max(0, min(stretch, (block + 1) * width - start)))
            first = np.uint64(start)
            if target.adds:
                for i in range(size):
                    out[first + i] += _signed(packed[p + i], place, mean)
            else:
                for i in range(size):
                    out[first + i] = _signed(packed[p + i], place, mean)
        tiles.finish_block(target, block)


@element
def _signed(byte: Any, place: int, mean: Any) -> Any:
    bit = np.int32(np.int32(byte) >> np.int32(place)) & _ONE
    return (np.float32(1) - np.float32(2) * np.float32(bit)) * mean


# Little is done to a value: 16 KiB of widened ones, and their sums, stay in the nearest cache.
_ENCODE_TILE_ELEMENTS = 1 << 12

_encode = encoder_of("sign", _encode_tile, _ENCODE_TILE_ELEMENTS)
_decode = decoder_of("sign", _decode_tile)
