"""Bit planes, as in `thinwire.wire.reference.planes`, for all blocks of a tile at once.

Codes lie in scratch memory, one byte each, `padded` bytes a block, zero behind the last element of
a ragged block, so that it packs like a full one. The packed bytes of a block are its planes one
after another, low bits first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from thinwire.wire.kernels.compiled import element, loop

__all__ = ["pack", "unpack"]

# A loop whose length the compiler knows becomes straight vector code; what is left over follows.
_STRIP = 64


@loop
def pack(codes: Any, stride: int, width: int, bits: int, packed: Any) -> None:
    """Pack codes of 1 to 7 bits; ``packed`` holds exactly the bytes of the tile's blocks."""
    start, shift = 0, 0
    row = packed.size // (codes.size // stride)
    if bits & 4:
        _pack_4(codes, stride, (width + 1) // 2, packed, row)
        start, shift = (width + 1) // 2, 4
    if bits & 2:
        _pack_2(codes, stride, (width + 3) // 4, shift, packed, row, start)
        start, shift = start + (width + 3) // 4, shift + 2
    if bits & 1:
        _pack_1(codes, stride, (width + 7) // 8, shift, packed, row, start)


@loop
def unpack(packed: Any, stride: int, width: int, bits: int, codes: Any) -> None:
    """The inverse of `pack`; what it writes behind the last element of a block means nothing."""
    start, shift = 0, 0
    row = packed.size // (codes.size // stride)
    if bits & 4:
        _unpack_4(packed, row, (width + 1) // 2, codes, stride)
        start, shift = (width + 1) // 2, 4
    if bits & 2:
        _unpack_2(packed, row, start, (width + 3) // 4, shift, codes, stride)
        start, shift = start + (width + 3) // 4, shift + 2
    if bits & 1:
        _unpack_1(packed, row, start, (width + 7) // 8, shift, codes, stride)


@loop
def _pack_4(codes: Any, stride: int, stretch: int, packed: Any, row: int) -> None:
    for block in range(codes.size // stride):
        low, target = np.uint64(block * stride), np.uint64(block * row)
        high = low + np.uint64(stretch)
        strips = stretch // _STRIP * _STRIP
        for strip in range(0, strips, _STRIP):
            for i in range(_STRIP):
                k = np.uint64(strip + i)
                packed[target + k] = _nibbles(codes[low + k], codes[high + k])
        for i in range(strips, stretch):
            k = np.uint64(i)
            packed[target + k] = _nibbles(codes[low + k], codes[high + k])


@element
def _nibbles(low: Any, high: Any) -> Any:
    return np.uint8((low & np.uint8(15)) | (high << np.uint8(4)))


@loop
def _unpack_4(packed: Any, row: int, stretch: int, codes: Any, stride: int) -> None:
    for block in range(codes.size // stride):
        low, source = np.uint64(block * stride), np.uint64(block * row)
        high = low + np.uint64(stretch)
        strips = stretch // _STRIP * _STRIP
        for strip in range(0, strips, _STRIP):
            for i in range(_STRIP):
                k = np.uint64(strip + i)
                codes[low + k] = packed[source + k] & np.uint8(15)
            for i in range(_STRIP):
                k = np.uint64(strip + i)
                codes[high + k] = packed[source + k] >> np.uint8(4)
        for i in range(strips, stretch):
            k = np.uint64(i)
            codes[low + k] = packed[source + k] & np.uint8(15)
        for i in range(strips, stretch):
            k = np.uint64(i)
            codes[high + k] = packed[source + k] >> np.uint8(4)


@loop
def _pack_2(
    codes: Any, stride: int, stretch: int, shift: int, packed: Any, row: int, start: int
) -> None:
    down, mask = np.uint8(shift), np.uint8(3)
    step = np.uint64(stretch)
    for block in range(codes.size // stride):
        source, target = np.uint64(block * stride), np.uint64(block * row + start)
        for i in range(stretch):
            k = source + np.uint64(i)
            low = codes[k] >> down & mask | (codes[k + step] >> down & mask) << np.uint8(2)
            k += np.uint64(2) * step
            high = codes[k] >> down & mask | (codes[k + step] >> down & mask) << np.uint8(2)
            packed[target + np.uint64(i)] = np.uint8(low | high << np.uint8(4))


@loop
def _unpack_2(
    packed: Any, row: int, start: int, stretch: int, shift: int, codes: Any, stride: int
) -> None:
    up, mask = np.uint8(shift), np.uint8(3)
    keep = np.uint8((1 << shift) - 1)  # planes that are there already, but not old scratch
    for block in range(codes.size // stride):
        source = np.uint64(block * row + start)
        for part in range(4):
            target = np.uint64(block * stride + part * stretch)
            down = np.uint8(2 * part)
            for i in range(stretch):
                k = np.uint64(i)
                plane = (packed[source + k] >> down & mask) << up
                codes[target + k] = np.uint8(codes[target + k] & keep | plane)


@loop
def _pack_1(
    codes: Any, stride: int, stretch: int, shift: int, packed: Any, row: int, start: int
) -> None:
    down, mask = np.uint8(shift), np.uint8(1)
    for block in range(codes.size // stride):
        target = np.uint64(block * row + start)
        for i in range(stretch):
            packed[target + np.uint64(i)] = 0
        for part in range(8):
            source = np.uint64(block * stride + part * stretch)
            up = np.uint8(part)
            for i in range(stretch):
                k = np.uint64(i)
                plane = (codes[source + k] >> down & mask) << up
                packed[target + k] = np.uint8(packed[target + k] | plane)


@loop
def _unpack_1(
    packed: Any, row: int, start: int, stretch: int, shift: int, codes: Any, stride: int
) -> None:
    up, mask = np.uint8(shift), np.uint8(1)
    keep = np.uint8((1 << shift) - 1)
    for block in range(codes.size // stride):
        source = np.uint64(block * row + start)
        for part in range(8):
            target = np.uint64(block * stride + part * stretch)
            down = np.uint8(part)
            for i in range(stretch):
                k = np.uint64(i)
                plane = (packed[source + k] >> down & mask) << up
                codes[target + k] = np.uint8(codes[target + k] & keep | plane)
