"""Two things that Numba has no words for: asking for memory early, and bytes at an address."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray  # type: ignore[attr-defined]
from numba.core import cgutils, types
from numba.extending import intrinsic

from thinwire.wire.kernels.compiled import element, loop

__all__ = [
    "STRIP",
    "as_pointer",
    "bytes_at",
    "floats_at",
    "halves_at",
    "keep",
    "prefetch",
    "prefetch_strip",
    "prefetch_to_write",
    "words_at",
]

# Elements between two requests for memory: few enough that the requests never queue up. A loop
# whose length the compiler knows becomes straight vector code; what is left over follows.
STRIP = 128

_CACHE_LINE_BYTES = 64
_READ, _WRITE, _KEEP_IN_ALL_LEVELS, _DATA = 0, 1, 3, 1


def _prefetch_to(purpose: int) -> Any:
    """``llvm.prefetch`` of ``array[index]``."""

    def prefetch_byte(typing_context: Any, array: Any, index: Any) -> Any:
        del typing_context, index

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            data = context.make_array(signature.args[0])(context, builder, args[0]).data
            pointer_type = ir.IntType(8).as_pointer()
            pointer = builder.bitcast(builder.gep(data, [args[1]]), pointer_type)
            int32 = ir.IntType(32)
            function_type = ir.FunctionType(ir.VoidType(), [pointer_type, int32, int32, int32])
            function: Any = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
                builder.module, function_type, "llvm.prefetch.p0"
            )
            hints = [ir.Constant(int32, hint) for hint in (purpose, _KEEP_IN_ALL_LEVELS, _DATA)]
            builder.call(function, [pointer, *hints])
            return context.get_dummy_value()

        return types.void(array, types.intp), generate

    return intrinsic(prefetch_byte)


def _pointer(typing_context: Any, address: Any) -> Any:
    """An address as a pointer."""
    del typing_context

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        del context, signature
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return types.voidptr(address), generate


_prefetch_line, _prefetch_line_to_write = _prefetch_to(_READ), _prefetch_to(_WRITE)
as_pointer: Any = intrinsic(_pointer)


@loop
def prefetch(memory: Any, start: int, stop: int) -> None:
    """Ask for bytes ``start`` to ``stop`` of a byte array without waiting for them.

    Codes cannot be found before all of their block was seen, and memory would stand idle meanwhile.
    Asking for what comes soon, a few lines at a time so that requests never queue up, is worth a
    quarter of the time of an int8 encode. Asking for what lies behind the end of the array is
    harmless.
    """
    for index in range(start, stop, _CACHE_LINE_BYTES):
        _prefetch_line(memory, index)


@element
def prefetch_to_write(memory: Any, start: int, stop: int) -> None:
    """Ask for bytes that will be written: a store waits for its line as a load does."""
    for index in range(start, stop, _CACHE_LINE_BYTES):
        _prefetch_line_to_write(memory, index)


@element
def prefetch_strip(memory: Any, start: int, element_bytes: int) -> None:
    """Ask for the bytes of a strip of elements of 2 or 4 bytes, without the cost of a loop."""
    _prefetch_four_lines(memory, start)
    if element_bytes == 4:
        _prefetch_four_lines(memory, start + 4 * _CACHE_LINE_BYTES)


@element
def _prefetch_four_lines(memory: Any, start: int) -> None:
    _prefetch_line(memory, start)
    _prefetch_line(memory, start + _CACHE_LINE_BYTES)
    _prefetch_line(memory, start + 2 * _CACHE_LINE_BYTES)
    _prefetch_line(memory, start + 3 * _CACHE_LINE_BYTES)


@loop
def bytes_at(address: int, size: int) -> Any:
    """``size`` bytes at an address, as an array. Whoever owns them must outlive it.

    Kernels take addresses and make arrays where they need them: a slice of an array that counts its
    references, or a view of it in another type, costs as much as a hundred elements.
    """
    return carray(as_pointer(address), (size,), np.uint8)


@loop
def floats_at(address: int, size: int) -> Any:
    """``size`` float32 numbers at an address."""
    return carray(as_pointer(address), (size,), np.float32)


@loop
def halves_at(address: int, size: int) -> Any:
    """``size`` 16-bit numbers at an address, as uint16."""
    return carray(as_pointer(address), (size,), np.uint16)


@loop
def words_at(address: int, size: int) -> Any:
    """``size`` int32 numbers at an address."""
    return carray(as_pointer(address), (size,), np.int32)


@loop
def keep(array: Any) -> int:
    """Call this after the last use of an array's address: until then the array is alive."""
    return array.size  # type: ignore[no-any-return]
