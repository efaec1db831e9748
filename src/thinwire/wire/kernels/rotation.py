"""The rotation of ``+hadamard`` on CPUs, as in `thinwire.wire.reference.rotation`.

A run of 32 values is two vectors of 16. Four of the five stages add neighbours at a distance inside
a vector: a permutation, a change of signs, a sum. No loop is compiled to that, so it is spelled in
the compiler's own language; on processors with shorter vectors the compiler splits them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from thinwire.families import ROTATED_ELEMENTS
from thinwire.wire.kernels.compiled import loop
from thinwire.wire.rotation import ROTATION_FACTOR

__all__ = ["rotate"]

_LANES = ROTATED_ELEMENTS // 2
_FACTOR = np.float32(ROTATION_FACTOR)
_FLOAT, _INT = ir.FloatType(), ir.IntType(32)
_FLOATS, _INTS = ir.VectorType(_FLOAT, _LANES), ir.VectorType(_INT, _LANES)
_FLOAT_BYTES = 4


def _run(typing_context: Any, source: Any, target: Any, start: Any, factors: Any) -> Any:
    """Rotate ``source[start : start + 32]`` into ``target``, which may be the same array."""
    del typing_context, start

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        arrays = zip(signature.args[:2], args[:2], strict=True)
        read, written = (context.make_array(kind)(context, builder, a).data for kind, a in arrays)
        before, factor, after = (builder.extract_value(args[3], index) for index in range(3))
        low, high = (_load(builder, read, args[2], offset) for offset in (0, _LANES))
        for scalar in (before, factor):
            low, high = (builder.fmul(v, _splat(builder, scalar)) for v in (low, high))
        for distance in (1, 2, 4, 8):
            low, high = (_stage(builder, v, distance) for v in (low, high))
        low, high = builder.fadd(low, high), builder.fsub(low, high)
        for vector, offset in ((low, 0), (high, _LANES)):
            scaled = builder.fmul(vector, _splat(builder, after))
            _store(builder, written, args[2], offset, scaled)
        return context.get_dummy_value()

    return types.void(source, target, types.uint64, factors), generate


_rotate_run: Any = intrinsic(_run)


def _stage(builder: Any, vector: Any, distance: int) -> Any:
    """``x[i] + x[i + distance]`` in the place of the first, their difference in the other's."""
    partners = ir.Constant(_INTS, [lane ^ distance for lane in range(_LANES)])
    signs = [-(1 << 31) if lane & distance else 0 for lane in range(_LANES)]
    swapped = builder.shuffle_vector(vector, ir.Constant(_FLOATS, ir.Undefined), partners)
    signed = builder.xor(builder.bitcast(vector, _INTS), ir.Constant(_INTS, signs))
    return builder.fadd(swapped, builder.bitcast(signed, _FLOATS))


def _splat(builder: Any, scalar: Any) -> Any:
    empty = ir.Constant(_FLOATS, ir.Undefined)
    first = builder.insert_element(empty, scalar, ir.Constant(_INT, 0))
    return builder.shuffle_vector(first, empty, ir.Constant(_INTS, [0] * _LANES))


def _address(builder: Any, data: Any, start: Any, offset: int) -> Any:
    index = builder.add(start, ir.Constant(start.type, offset))
    return builder.bitcast(builder.gep(data, [index]), _FLOATS.as_pointer())


def _load(builder: Any, data: Any, start: Any, offset: int) -> Any:
    return builder.load(_address(builder, data, start, offset), align=_FLOAT_BYTES, typ=_FLOATS)


def _store(builder: Any, data: Any, start: Any, offset: int, vector: Any) -> None:
    builder.store(vector, _address(builder, data, start, offset), align=_FLOAT_BYTES)


@loop
def rotate(source: Any, target: Any, width: int, before: Any, after: Any) -> None:
    """Rotate blocks of ``width`` float32 values, times ``before`` first and ``after`` at the end.

    What is left over of a block is multiplied alone. ``target`` may be ``source``.
    """
    factors = (before, _FACTOR, after)
    whole = width - width % ROTATED_ELEMENTS
    for block in range(source.size // width):
        start = np.uint64(block * width)
        for run in range(0, whole, ROTATED_ELEMENTS):
            _rotate_run(source, target, start + np.uint64(run), factors)
        for i in range(whole, width):
            target[start + np.uint64(i)] = source[start + np.uint64(i)] * before * after
