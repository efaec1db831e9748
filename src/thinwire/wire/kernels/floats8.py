"""The families ``e4m3`` and ``e5m2``: 8-bit floats from the bits of float32, and back.

A number of the type has the exponent and the leading mantissa bits of a float32, counted from
another bias. Its denormals are multiples of one step: beside a power of two whose float32
neighbours are that step apart, one addition rounds to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from thinwire.formats import WireFormat
from thinwire.wire.kernels import scales, tiles
from thinwire.wire.kernels.blocked import BlockedKernel, Work, addresses_of
from thinwire.wire.kernels.compiled import element, loop, tile_loop
from thinwire.wire.kernels.memory import prefetch
from thinwire.wire.kernels.random import block_word, centred_high, centred_low, random_word
from thinwire.wire.kernels.scaling import scale_tile
from thinwire.wire.kernels.walk import decoder_of, encoder_of
from thinwire.wire.key import Key
from thinwire.wire.reference.float8 import FLOAT8_TYPES, Float8Type
from thinwire.wire.scales import ScaleRule

__all__ = ["Float8Kernel"]

_MAGNITUDE = np.int32(0x7FFFFFFF)
_MANTISSA_BITS = 23
_BIAS = 127
_ONE = np.int32(1)
_SIGN = np.int32(0x80)
_MAGNITUDE_OF_CODE = np.int32(0x7F)
# Adding and subtracting it rounds magnitudes below 2**22 to integers, to nearest even.
_ROUNDER = np.float32(1.5 * 2**23)


class _Numbers(NamedTuple):
    """`thinwire.wire.reference.float8.Float8Type` as numbers for a loop.

    Attributes:
        dropped_bits: int32, mantissa bits that a float32 has more.
        mantissa_bits: int32, mantissa bits of the type.
        rebias: int32, the difference of the exponents as they are stored, in the bits of a float32.
        smallest_normal, largest: int32, float32 bits.
        smallest_exponent: int32, of normal numbers, as float32 stores it.
        beside: float32, whose neighbours are as far away as one denormal from the next.
        beside_bits: int32, its bits.
        denormal_step: float32.
        infinity: int32, the code of Inf; beyond all codes where there is none.
        not_finite: int32, the first code that is no finite number.
        rule: how scales are rounded.
        stochastic: rounding is random.
        key: names the random numbers.
    """

    dropped_bits: Any
    mantissa_bits: Any
    rebias: Any
    smallest_normal: Any
    largest: Any
    smallest_exponent: Any
    beside: Any
    beside_bits: Any
    denormal_step: Any
    infinity: Any
    not_finite: Any
    rule: scales.Rule
    stochastic: bool
    key: int


class Float8Kernel(BlockedKernel):
    """The families ``e4m3`` and ``e5m2``."""

    def __init__(self, fmt: WireFormat) -> None:
        super().__init__(fmt)
        kind = FLOAT8_TYPES[fmt.family]
        rule = ScaleRule.for_levels(
            reach=kind.largest, narrow=fmt.scale_bytes == 2, up=fmt.is_stochastic
        )
        self._numbers = _numbers_of(kind, scales.rule_of(rule, kind.largest))
        if "stochastic" in fmt.options:
            self._numbers = self._numbers._replace(stochastic=True)

    def _encoder(self, x: Tensor, out: Tensor, plan: tiles.Plan, key: Key) -> Work:
        numbers = self._numbers
        if numbers.stochastic:
            numbers = numbers._replace(key=key.signed_value)
        return partial(_encode, x.data_ptr(), out.data_ptr(), plan, numbers)

    def _decoder(self, payloads: Sequence[Tensor], out: Tensor, plan: tiles.Plan) -> Work:
        return partial(_decode, addresses_of(payloads), out.data_ptr(), plan, self._numbers)


def _numbers_of(kind: Float8Type, rule: scales.Rule) -> _Numbers:
    finite = torch.arange(128, dtype=torch.uint8).view(kind.dtype).float().isfinite()
    num_finite = int(finite.sum())
    has_infinity = num_finite < 127  # e4m3 has one NaN and no Inf
    smallest_exponent = kind.smallest_exponent + _BIAS
    denormal_step = 2.0 ** (kind.smallest_exponent - kind.mantissa_bits)
    beside = np.float32(denormal_step * 2.0**_MANTISSA_BITS)
    return _Numbers(
        dropped_bits=np.int32(_MANTISSA_BITS - kind.mantissa_bits),
        mantissa_bits=np.int32(kind.mantissa_bits),
        rebias=np.int32((smallest_exponent - 1) << _MANTISSA_BITS),
        smallest_normal=np.int32(smallest_exponent << _MANTISSA_BITS),
        largest=np.float32(kind.largest).view(np.int32),
        smallest_exponent=np.int32(smallest_exponent),
        beside=beside,
        beside_bits=beside.view(np.int32),
        denormal_step=np.float32(denormal_step),
        infinity=np.int32(num_finite if has_infinity else 128),
        not_finite=np.int32(num_finite),
        rule=rule,
        stochastic=False,
        key=0,
    )


@tile_loop
def _encode_tile(site: tiles.Site, numbers: _Numbers) -> None:
    values, (soon, later) = tiles.load_values(site), tiles.halves_of_next(site)
    steps, finite = scale_tile(site, values, numbers.rule, soon)
    codes = tiles.codes_of(site)
    if numbers.stochastic:
        _stochastic(values, site.tile, steps, numbers, later, codes)
    else:
        _nearest(values, site.tile.width, steps, numbers, later, codes)
    scales.clear_codes(finite, codes)


@loop
def _nearest(
    values: Any, width: int, inverses: Any, numbers: _Numbers, ahead: Any, codes: Any
) -> None:
    """The nearest number of the type; prefetches ``ahead``."""
    ahead_bytes = ahead.size // inverses.size
    for block in range(inverses.size):
        inverse = inverses[block]
        prefetch(ahead, block * ahead_bytes, (block + 1) * ahead_bytes)
        for k in range(np.uint64(block * width), np.uint64((block + 1) * width)):
            bits = np.float32(values[k] * inverse).view(np.int32)
            codes[k] = _code(bits & _MAGNITUDE, bits, numbers)


@element
def _code(magnitude: Any, signed: Any, numbers: _Numbers) -> Any:
    """The code nearest to a magnitude, at most the largest, with the sign of ``signed``.

    Both are float32 bits. Of NaN, it is some code: callers clear those.
    """
    capped = np.int32(min(magnitude, numbers.largest))
    odd = np.int32(np.int32(capped >> numbers.dropped_bits) & _ONE)
    below_half = np.int32(np.int32(_ONE << np.int32(numbers.dropped_bits - _ONE)) - _ONE)
    rounded = np.int32(np.int32(np.int32(capped - numbers.rebias) + below_half) + odd)
    code = np.int32(rounded >> numbers.dropped_bits)
    small = np.float32(capped.view(np.float32) + numbers.beside).view(np.int32)
    small = np.int32(small - numbers.beside_bits)
    code = code if capped >= numbers.smallest_normal else small
    return np.uint8(code | np.int32(np.int32(signed >> np.int32(24)) & _SIGN))


@loop
def _stochastic(
    values: Any, tile: tiles.Tile, inverses: Any, numbers: _Numbers, ahead: Any, codes: Any
) -> None:
    """One of the two numbers next to each value, by distance; prefetches ``ahead``."""
    width, ahead_bytes = tile.width, ahead.size // inverses.size
    pairs, half = width // 2, (width + 1) // 2
    for block in range(inverses.size):
        inverse = inverses[block]
        prefetch(ahead, block * ahead_bytes, (block + 1) * ahead_bytes)
        base = block_word(numbers.key, tile.block + block)
        low = np.uint64(block * width)
        high = low + np.uint64(half)
        for i in range(np.uint64(half)):
            random = centred_low(random_word(base, i))
            codes[low + i] = _one_of_two(values[low + i] * inverse, random, numbers)
        for i in range(np.uint64(pairs)):
            random = centred_high(random_word(base, i))
            codes[high + i] = _one_of_two(values[high + i] * inverse, random, numbers)


@element
def _one_of_two(scaled: Any, random: Any, numbers: _Numbers) -> Any:
    """The code of a value in units of the scale plus a random part of the spacing around it."""
    bits = np.float32(scaled).view(np.int32)
    magnitude = np.int32(bits & _MAGNITUDE)
    exponent = np.int32(magnitude >> np.int32(_MANTISSA_BITS))
    exponent = exponent if exponent > numbers.smallest_exponent else numbers.smallest_exponent
    exponent = np.int32(exponent - numbers.mantissa_bits)  # of the spacing
    spacing = np.int32(exponent << np.int32(_MANTISSA_BITS)).view(np.float32)
    inverse = np.int32(np.int32(2 * _BIAS) - exponent) << np.int32(_MANTISSA_BITS)
    spacings = magnitude.view(np.float32) * np.int32(inverse).view(np.float32)
    rounded = np.abs((spacings + random + _ROUNDER) - _ROUNDER)
    return _code(np.float32(rounded * spacing).view(np.int32), bits, numbers)


@tile_loop
def _decode_tile(site: tiles.Site, numbers: _Numbers, target: tiles.Target) -> None:
    steps = site.scratch.steps[: site.tile.num_blocks]
    scales.load_scales(tiles.scales_address(site), site.plan.scale_bytes, steps)
    _values(tiles.codes_of(site), steps, numbers, target)


@loop
def _values(codes: Any, steps: Any, numbers: _Numbers, target: tiles.Target) -> None:
    """The number of each code times the step of its block into ``target``."""
    width, out = target.width, target.values
    for block in range(steps.size):
        step = steps[block]
        if target.adds:
            for k in range(np.uint64(block * width), np.uint64((block + 1) * width)):
                out[k] += _number(codes[k], numbers) * step
        else:
            for k in range(np.uint64(block * width), np.uint64((block + 1) * width)):
                out[k] = _number(codes[k], numbers) * step
        tiles.finish_block(target, block)


@element
def _number(code: Any, numbers: _Numbers) -> Any:
    """The float32 that a code stands for."""
    magnitude = np.int32(np.int32(code) & _MAGNITUDE_OF_CODE)
    bits = np.int32(np.int32(magnitude << numbers.dropped_bits) + numbers.rebias)
    small = np.float32(np.float32(magnitude) * numbers.denormal_step).view(np.int32)
    bits = bits if magnitude >= np.int32(_ONE << numbers.mantissa_bits) else small
    beyond = scales.INFINITY if magnitude == numbers.infinity else scales.NAN
    bits = bits if magnitude < numbers.not_finite else beyond
    sign = np.int32(np.int32(np.int32(code) & _SIGN) << np.int32(24))
    return np.int32(bits | sign).view(np.float32)


_encode, _decode = encoder_of("float8", _encode_tile), decoder_of("float8", _decode_tile)
