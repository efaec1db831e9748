"""Codes to whole cache lines of float32 in registers, and past the caches from there.

A block that is decoded into scratch memory and streamed afterwards is written, read and written
again. Where nothing is left to do with its values, a line at a time spares two of the three.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from thinwire.wire.kernels.compiled import loop
from thinwire.wire.kernels.streaming import LINE_BYTES, mark_as_streamed
from thinwire.wire.kernels.tiles import Target

__all__ = ["stream_values"]

_LANES = LINE_BYTES // 4
_CODES = ir.VectorType(ir.IntType(8), _LANES)
_WORDS = ir.VectorType(ir.IntType(32), _LANES)
_FLOATS = ir.VectorType(ir.FloatType(), _LANES)
_LANE = ir.IntType(32)


def _line_of_values(*, adds: bool) -> Any:
    """``(code - offset + shift) * step`` for one line, or what is there already and that."""

    def line(
        typing_context: Any, codes: Any, sums: Any, out: Any, step: Any, offset: Any, shift: Any
    ) -> Any:
        del typing_context

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            del signature
            codes, sums, out, *numbers = args
            step, offset, shift = (_splat(builder, number) for number in numbers)
            loaded = builder.load(builder.inttoptr(codes, _CODES.as_pointer()), align=1, typ=_CODES)
            values = builder.uitofp(builder.zext(loaded, _WORDS), _FLOATS)
            values = builder.fadd(builder.fsub(values, offset), shift)
            values = builder.fmul(values, step)
            if adds:
                present = builder.inttoptr(sums, _FLOATS.as_pointer())
                values = builder.fadd(builder.load(present, align=4, typ=_FLOATS), values)
            target = builder.inttoptr(out, _FLOATS.as_pointer())
            mark_as_streamed(builder, builder.store(values, target, align=LINE_BYTES))
            return context.get_dummy_value()

        return types.void(codes, sums, out, step, offset, shift), generate

    return intrinsic(line)


def _splat(builder: Any, number: Any) -> Any:
    empty = ir.Constant(_FLOATS, ir.Undefined)
    first = builder.insert_element(empty, number, ir.Constant(_LANE, 0))
    lanes = ir.Constant(ir.VectorType(_LANE, _LANES), [0] * _LANES)
    return builder.shuffle_vector(first, empty, lanes)


_stream_line, _stream_sum = _line_of_values(adds=False), _line_of_values(adds=True)


@loop
def stream_values(
    codes: Any, block: int, target: Target, step: Any, offset: Any, shift: Any
) -> None:
    """Decode a block of whole lines to the target's address, with what its values are already.

    Call `thinwire.wire.kernels.streaming.settle` before anybody else may look.

    Args:
        codes: of all blocks, one byte each.
        block: which one.
        target: with an address.
        step, offset, shift: float32.
    """
    first, width = block * target.width, target.width
    code, sums, out = codes.ctypes.data + first, target.values.ctypes.data, target.address
    if target.adds:
        for i in range(0, width, _LANES):
            there = 4 * (first + i)
            _stream_sum(code + i, sums + there, out + there, step, offset, shift)
    else:
        for i in range(0, width, _LANES):
            there = 4 * (first + i)
            _stream_line(code + i, sums + there, out + there, step, offset, shift)
