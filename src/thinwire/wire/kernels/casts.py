"""float32 to bfloat16 and float16 at the speed of a copy.

A strip that holds neither NaN nor Inf nor anything beyond the range, which is almost every one, is
rounded by a loop without comparisons; the others go through the full formula of `halves.narrow`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from thinwire.wire.kernels.compiled import entry, loop
from thinwire.wire.kernels.halves import BFLOAT16, FLOAT16, narrow
from thinwire.wire.kernels.scales import INFINITY
from thinwire.wire.key import Key
from thinwire.wire.reference.casts import CastReference

__all__ = ["CastKernel"]

# 16 KiB of float32: looked at and rounded while it is in the nearest cache.
_STRIP = 4096

_MAGNITUDE = np.int32(0x7FFFFFFF)
_SIGN_OF_HALF = np.int32(0x8000)

# Bits of the least magnitude that would round beyond the largest number of the type.
_BEYOND_BFLOAT16 = np.int32(0x7F7F8000)
_BEYOND_FLOAT16 = np.int32(0x477FF000)

# NaN has a sign and other bits that differ between processors: only these are sent.
_BFLOAT16_NAN = np.uint16(0x7FC0)
_FLOAT16_NAN = np.uint16(0x7E00)

_FLOAT16_REBIAS = np.int32((127 - 15) << 23)
_SMALLEST_NORMAL_FLOAT16 = np.int32((127 - 14) << 23)
_HALF = np.float32(0.5)
_HALF_BITS = np.int32(0x3F000000)


class CastKernel(CastReference):
    """The families ``bf16`` and ``fp16`` for values in float32; the rest is the reference's."""

    def _encode(self, x: Tensor, out: Tensor, key: Key) -> None:
        if x.dtype != torch.float32:
            super()._encode(x, out, key)
            return
        codes_end = self.format.layout(x.numel()).codes_end
        payload = out.numpy()
        payload[codes_end:] = 0
        kind = BFLOAT16 if self.format.family == "bf16" else FLOAT16
        _narrow_strips(x.detach().numpy(), kind, payload[:codes_end].view(np.uint16))


@entry
def _narrow_strips(values: Any, kind: int, target: Any) -> None:
    beyond = _BEYOND_BFLOAT16 if kind == BFLOAT16 else _BEYOND_FLOAT16
    nan = _BFLOAT16_NAN if kind == BFLOAT16 else _FLOAT16_NAN
    for start in range(0, values.size, _STRIP):
        strip, place = values[start : start + _STRIP], target[start : start + _STRIP]
        if _largest(strip.view(np.int32)) >= beyond:
            narrow(strip, kind, place)
            _unify_nan(strip.view(np.int32), nan, place)
        elif kind == BFLOAT16:
            _to_bfloat16(strip.view(np.int32), place)
        else:
            _to_float16(strip, place)


@loop
def _unify_nan(bits: Any, nan: Any, target: Any) -> None:
    for i in range(bits.size):
        if np.int32(bits[i] & _MAGNITUDE) > INFINITY:
            target[i] = nan


@loop
def _largest(bits: Any) -> Any:
    largest = np.int32(0)
    for i in range(bits.size):
        magnitude = np.int32(bits[i] & _MAGNITUDE)
        largest = magnitude if magnitude > largest else largest
    return largest


@loop
def _to_bfloat16(bits: Any, target: Any) -> None:
    # Every step is cast back: Numba would go on in 64 bits, at half the speed.
    for i in range(bits.size):
        odd = np.int32(np.int32(bits[i] >> np.int32(16)) & np.int32(1))
        rounded = np.int32(np.int32(bits[i] + np.int32(0x7FFF)) + odd)
        target[i] = np.uint16(np.int32(rounded >> np.int32(16)))


@loop
def _to_float16(values: Any, target: Any) -> None:
    bits = values.view(np.int32)
    for i in range(bits.size):
        magnitude = np.int32(bits[i] & _MAGNITUDE)
        odd = np.int32(np.int32(magnitude >> np.int32(13)) & np.int32(1))
        rounded = np.int32(np.int32(magnitude - _FLOAT16_REBIAS + np.int32(0xFFF)) + odd)
        half = np.int32(rounded >> np.int32(13))
        # Beside 1/2, float32 has the spacing of float16's denormals: adding it rounds to them.
        small = np.float32(np.abs(values[i]) + _HALF).view(np.int32)
        small = np.int32(small - _HALF_BITS)
        half = half if magnitude >= _SMALLEST_NORMAL_FLOAT16 else small
        sign = np.int32(np.int32(bits[i] >> np.int32(16)) & _SIGN_OF_HALF)
        target[i] = np.uint16(half | sign)
