"""Bit planes, as in `thinwire.wire.reference.planes`, for all blocks of a tile at once.

Codes lie in a scratch array, one byte each, ``stride`` bytes a block: a multiple of 8, zero behind
the last element of a ragged block, so that it packs like a full one. The packed bytes of a block
are its planes one after another, low bits first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from thinwire.wire.kernels.compiled import loop

__all__ = ["pack", "unpack"]


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
        first = block * stride
        low, high = codes[first : first + stretch], codes[first + stretch : first + 2 * stretch]
        target = packed[block * row : block * row + stretch]
        for i in range(target.size):
            target[i] = np.uint8((low[i] & np.uint8(15)) | (high[i] << np.uint8(4)))


@loop
def _unpack_4(packed: Any, row: int, stretch: int, codes: Any, stride: int) -> None:
    for block in range(codes.size // stride):
        first = block * stride
        low, high = codes[first : first + stretch], codes[first + stretch : first + 2 * stretch]
        source = packed[block * row : block * row + stretch]
        for i in range(source.size):
            low[i] = source[i] & np.uint8(15)
            high[i] = source[i] >> np.uint8(4)


@loop
def _pack_2(
    codes: Any, stride: int, stretch: int, shift: int, packed: Any, row: int, start: int
) -> None:
    down, mask = np.uint8(shift), np.uint8(3)
    for block in range(codes.size // stride):
        first = block * stride
        part_0 = codes[first : first + stretch]
        part_1 = codes[first + stretch : first + 2 * stretch]
        part_2 = codes[first + 2 * stretch : first + 3 * stretch]
        part_3 = codes[first + 3 * stretch : first + 4 * stretch]
        target = packed[block * row + start : block * row + start + stretch]
        for i in range(target.size):
            low = (part_0[i] >> down & mask) | (part_1[i] >> down & mask) << np.uint8(2)
            high = (part_2[i] >> down & mask) | (part_3[i] >> down & mask) << np.uint8(2)
            target[i] = np.uint8(low | high << np.uint8(4))


@loop
def _unpack_2(
    packed: Any, row: int, start: int, stretch: int, shift: int, codes: Any, stride: int
) -> None:
    up, mask = np.uint8(shift), np.uint8(3)
    keep = np.uint8((1 << shift) - 1)  # the planes already there; without any, old scratch goes
    for block in range(codes.size // stride):
        source = packed[block * row + start : block * row + start + stretch]
        for index in range(4):
            first = block * stride + index * stretch
            part = codes[first : first + stretch]
            down = np.uint8(2 * index)
            for i in range(source.size):
                part[i] = np.uint8((part[i] & keep) | (source[i] >> down & mask) << up)


@loop
def _pack_1(
    codes: Any, stride: int, stretch: int, shift: int, packed: Any, row: int, start: int
) -> None:
    down, mask = np.uint8(shift), np.uint8(1)
    for block in range(codes.size // stride):
        target = packed[block * row + start : block * row + start + stretch]
        target[:] = 0
        for index in range(8):
            first = block * stride + index * stretch
            part = codes[first : first + stretch]
            up = np.uint8(index)
            for i in range(target.size):
                target[i] = np.uint8(target[i] | (part[i] >> down & mask) << up)


@loop
def _unpack_1(
    packed: Any, row: int, start: int, stretch: int, shift: int, codes: Any, stride: int
) -> None:
    up, mask = np.uint8(shift), np.uint8(1)
    keep = np.uint8((1 << shift) - 1)
    for block in range(codes.size // stride):
        source = packed[block * row + start : block * row + start + stretch]
        for index in range(8):
            first = block * stride + index * stretch
            part = codes[first : first + stretch]
            down = np.uint8(index)
            for i in range(source.size):
                part[i] = np.uint8((part[i] & keep) | (source[i] >> down & mask) << up)
