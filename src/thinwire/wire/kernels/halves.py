"""float32 from and to bfloat16 and float16, a stretch at a time, by their bits.

Numba has no arithmetic for 16-bit floats on CPUs. Stretches are short enough to stay in the nearest
cache, so that a 16-bit input needs no float32 copy of itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from thinwire.wire.kernels.compiled import loop

__all__ = ["BFLOAT16", "FLOAT16", "FLOAT32", "narrow", "widen"]

# How the elements of a tensor are stored.
FLOAT32, BFLOAT16, FLOAT16 = 0, 1, 2

_MAGNITUDE = np.int32(0x7FFFFFFF)
_INFINITY = np.int32(0x7F800000)

_BFLOAT16_MAX = np.int32(0x7F7F)
_BFLOAT16_NAN = np.int32(0x7FC0)

_FLOAT16_REBIAS = np.int32((127 - 15) << 23)
_FLOAT16_SMALLEST_NORMAL = np.int32(0x400)
_FLOAT16_INFINITY = np.int32(0x7C00)
_FLOAT16_MAX = np.int32(0x7BFF)
_FLOAT16_NAN = np.int32(0x7E00)
_FLOAT16_DENORMAL_STEP = np.float32(2.0**-24)
_FLOAT16_STEPS_PER_UNIT = np.float32(2.0**24)
_FLOAT32_OF_SMALLEST_NORMAL = np.int32((127 - 14) << 23)


@loop
def widen(source: Any, kind: int, target: Any) -> None:
    """float32 values of the uint16 array ``source``, of kind BFLOAT16 or FLOAT16."""
    bits = target.view(np.int32)
    if kind == BFLOAT16:
        for i in range(bits.size):
            bits[i] = np.int32(source[i]) << np.int32(16)
        return
    # Denormals first, as multiples of their step; then everything else over them.
    for i in range(target.size):
        magnitude = np.int32(source[i]) & np.int32(0x7FFF)
        target[i] = np.float32(magnitude) * _FLOAT16_DENORMAL_STEP
    for i in range(bits.size):
        half = np.int32(source[i])
        magnitude = half & np.int32(0x7FFF)
        wide = np.int32((magnitude << np.int32(13)) + _FLOAT16_REBIAS)
        wide = np.int32(wide + _FLOAT16_REBIAS) if magnitude >= _FLOAT16_INFINITY else wide
        wide = wide if magnitude >= _FLOAT16_SMALLEST_NORMAL else bits[i]
        bits[i] = wide | np.int32((half & np.int32(0x8000)) << np.int32(16))


@loop
def narrow(source: Any, kind: int, target: Any) -> None:
    """Round float32 ``source`` to nearest even into the uint16 array ``target``.

    A finite value beyond the range becomes the largest finite one.
    """
    bits = source.view(np.int32)
    if kind == BFLOAT16:
        for i in range(bits.size):
            magnitude = bits[i] & _MAGNITUDE
            odd = (magnitude >> np.int32(16)) & np.int32(1)
            half = np.int32(magnitude + np.int32(0x7FFF) + odd) >> np.int32(16)
            half = half if half < _BFLOAT16_MAX else _BFLOAT16_MAX
            half = half if magnitude < _INFINITY else np.int32(_INFINITY >> np.int32(16))
            half = half if magnitude <= _INFINITY else _BFLOAT16_NAN
            target[i] = np.uint16(half | ((bits[i] >> np.int32(16)) & np.int32(0x8000)))
        return
    for i in range(bits.size):
        magnitude = bits[i] & _MAGNITUDE
        steps = np.int32(np.rint(np.abs(source[i]) * _FLOAT16_STEPS_PER_UNIT))
        odd = (magnitude >> np.int32(13)) & np.int32(1)
        half = np.int32(magnitude - _FLOAT16_REBIAS + np.int32(0xFFF) + odd) >> np.int32(13)
        half = half if half < _FLOAT16_MAX else _FLOAT16_MAX
        half = half if magnitude >= _FLOAT32_OF_SMALLEST_NORMAL else steps
        half = half if magnitude < _INFINITY else _FLOAT16_INFINITY
        half = half if magnitude <= _INFINITY else _FLOAT16_NAN
        target[i] = np.uint16(half | ((bits[i] >> np.int32(16)) & np.int32(0x8000)))
