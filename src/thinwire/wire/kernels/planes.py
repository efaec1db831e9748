"""Bit planes, as in `thinwire.wire.reference.planes`, for all blocks of a tile at once.

Codes lie in scratch memory, one byte each, `thinwire.wire.kernels.tiles.padded` bytes a block, zero
behind the last element of a ragged block, so that it packs like a full one. The packed bytes of a
block are its planes one after another, low bits first.

Codes that share a byte are a stretch apart, so that a vector of bytes is packed by shifting and
joining as many vectors of codes. Stretches are short, 16 bytes where a bit of 128 codes is packed,
and their lengths unknown to the compiler: it would spend more on finding that out than on the work.
So the vectors are spelled in its own language, wide ones as long as they fit, then narrower ones;
a machine without wide ones has them divided by the compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from thinwire.wire.kernels.compiled import element, loop
from thinwire.wire.kernels.memory import STRIP

__all__ = ["pack", "unpack"]

_BYTE = ir.IntType(8)
# Where codes begin, bytes from one code of a packed byte to the next, the place of the plane in the
# codes, and where packed bytes begin.
_STEP = types.void(types.int64, types.int64, types.int64, types.int64)


@loop
def pack(codes: Any, stride: int, width: int, bits: int, packed: Any) -> None:
    """Pack codes of 1 to 7 bits; ``packed`` holds exactly the bytes of the tile's blocks."""
    if width == STRIP:
        _pack_blocks(codes, stride, STRIP, bits, packed)  # the usual width: all lengths are known
    else:
        _pack_blocks(codes, stride, width, bits, packed)


@element
def _pack_blocks(codes: Any, stride: int, width: int, bits: int, packed: Any) -> None:
    num_blocks = codes.size // stride
    row, source, target = packed.size // num_blocks, codes.ctypes.data, packed.ctypes.data
    for block in range(num_blocks):
        start, shift = target + block * row, 0
        if bits & 4:
            start = _pack_4(source + block * stride, (width + 1) // 2, shift, start)
            shift = 4
        if bits & 2:
            start = _pack_2(source + block * stride, (width + 3) // 4, shift, start)
            shift += 2
        if bits & 1:
            _pack_1(source + block * stride, (width + 7) // 8, shift, start)


@loop
def unpack(packed: Any, stride: int, width: int, bits: int, codes: Any) -> None:
    """The inverse of `pack`; what it writes behind the last element of a block means nothing."""
    if width == STRIP:
        _unpack_blocks(packed, stride, STRIP, bits, codes)
    else:
        _unpack_blocks(packed, stride, width, bits, codes)


@element
def _unpack_blocks(packed: Any, stride: int, width: int, bits: int, codes: Any) -> None:
    num_blocks = codes.size // stride
    row, source, target = packed.size // num_blocks, packed.ctypes.data, codes.ctypes.data
    for block in range(num_blocks):
        start, shift = source + block * row, 0
        if bits & 4:
            start = _unpack_4(target + block * stride, (width + 1) // 2, shift, start)
            shift = 4
        if bits & 2:
            start = _unpack_2(target + block * stride, (width + 3) // 4, shift, start)
            shift += 2
        if bits & 1:
            _unpack_1(target + block * stride, (width + 7) // 8, shift, start)


def _pack_step(plane_bits: int, lanes: int) -> Any:
    """Packs ``lanes`` bytes of a plane."""
    vector = ir.VectorType(_BYTE, lanes)
    mask = _constant(vector, (1 << plane_bits) - 1)

    def step(typing_context: Any, codes: Any, stretch: Any, shift: Any, packed: Any) -> Any:
        del typing_context, codes, stretch, shift, packed

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            del signature
            address, shifts, joined = args[0], _splat(builder, vector, args[2]), None
            for up in range(0, 8, plane_bits):
                plane = builder.and_(builder.lshr(_load(builder, vector, address), shifts), mask)
                part = builder.shl(plane, _constant(vector, up))
                joined = part if joined is None else builder.or_(joined, part)
                address = builder.add(address, args[1])
            _store(builder, joined, args[3])
            return context.get_dummy_value()

        return _STEP, generate

    return intrinsic(step)


def _unpack_step(plane_bits: int, lanes: int) -> Any:
    """The inverse of `_pack_step`."""
    vector = ir.VectorType(_BYTE, lanes)
    mask, one = _constant(vector, (1 << plane_bits) - 1), _constant(vector, 1)

    def step(typing_context: Any, codes: Any, stretch: Any, shift: Any, packed: Any) -> Any:
        del typing_context, codes, stretch, shift, packed

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            del signature
            address, shifts = args[0], _splat(builder, vector, args[2])
            # Planes that are there already stay, and what scratch memory held before does not.
            kept = builder.sub(builder.shl(one, shifts), one)
            joined = _load(builder, vector, args[3])
            for down in range(0, 8, plane_bits):
                plane = builder.and_(builder.lshr(joined, _constant(vector, down)), mask)
                code = builder.and_(_load(builder, vector, address), kept)
                _store(builder, builder.or_(code, builder.shl(plane, shifts)), address)
                address = builder.add(address, args[1])
            return context.get_dummy_value()

        return _STEP, generate

    return intrinsic(step)


def _constant(vector: Any, value: int) -> Any:
    return ir.Constant(vector, [value] * vector.count)


def _splat(builder: Any, vector: Any, number: Any) -> Any:
    empty, index = ir.Constant(vector, ir.Undefined), ir.IntType(32)
    first = builder.insert_element(empty, builder.trunc(number, _BYTE), ir.Constant(index, 0))
    return builder.shuffle_vector(first, empty, _constant(ir.VectorType(index, vector.count), 0))


def _load(builder: Any, vector: Any, address: Any) -> Any:
    return builder.load(builder.inttoptr(address, vector.as_pointer()), align=1, typ=vector)


def _store(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=1)


def _loop_over_plane(
    name: str, make_step: Callable[[int, int], Any], plane_bits: int
) -> Callable[..., int]:
    """A loop over one plane of one block, which returns where the packed bytes of it end."""
    wide, half = make_step(plane_bits, 64), make_step(plane_bits, 32)
    quarter, eighth = make_step(plane_bits, 16), make_step(plane_bits, 8)
    single = make_step(plane_bits, 1)

    def over_plane(codes: int, stretch: int, shift: int, packed: int) -> int:
        end = packed + stretch
        while packed + 64 <= end:
            wide(codes, stretch, shift, packed)
            codes, packed = codes + 64, packed + 64
        if packed + 32 <= end:
            half(codes, stretch, shift, packed)
            codes, packed = codes + 32, packed + 32
        if packed + 16 <= end:
            quarter(codes, stretch, shift, packed)
            codes, packed = codes + 16, packed + 16
        if packed + 8 <= end:
            eighth(codes, stretch, shift, packed)
            codes, packed = codes + 8, packed + 8
        while packed < end:
            single(codes, stretch, shift, packed)
            codes, packed = codes + 1, packed + 1
        return end

    return element(over_plane, name=f"{name}_{plane_bits}")


_pack_4, _pack_2, _pack_1 = (_loop_over_plane("pack", _pack_step, bits) for bits in (4, 2, 1))
_unpack_4, _unpack_2, _unpack_1 = (
    _loop_over_plane("unpack", _unpack_step, bits) for bits in (4, 2, 1)
)
