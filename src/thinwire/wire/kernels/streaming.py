"""Writing past the caches, for results that are too large to be found in them afterwards.

An ordinary store reads the line that it is about to overwrite: almost half of the memory traffic of
a decode to float32. A non-temporal store does not. What fits the last-level cache is written as
usual, since whoever reads it next finds it there.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from thinwire.wire.kernels.compiled import loop
from thinwire.wire.kernels.memory import as_pointer, bytes_at

__all__ = ["LINE_BYTES", "last_level_cache_bytes", "mark_as_streamed", "settle", "stream"]

LINE_BYTES = 64
_BYTE = ir.IntType(8)
_LINE = ir.VectorType(_BYTE, LINE_BYTES)

# Where the system does not tell: what server processors have for a few cores at least.
_ASSUMED_CACHE_BYTES = 32 << 20


@cache
def last_level_cache_bytes() -> int:
    """The size of the last-level cache that this process can see."""
    for name in ("SC_LEVEL4_CACHE_SIZE", "SC_LEVEL3_CACHE_SIZE", "SC_LEVEL2_CACHE_SIZE"):
        size = os.sysconf(name) if name in os.sysconf_names else 0
        if size > 0:
            return size
    return _ASSUMED_CACHE_BYTES


def mark_as_streamed(builder: Any, store: Any) -> None:
    """Have a store of whole lines go past the caches."""
    one = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
    store.set_metadata("nontemporal", one)


def _copy_line(typing_context: Any, source: Any, target: Any) -> Any:
    """Copy 64 bytes from one address to another, a multiple of 64, past the caches."""
    del typing_context

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        del signature
        read, written = (builder.bitcast(a, _LINE.as_pointer()) for a in args)
        line = builder.load(read, align=1, typ=_LINE)
        mark_as_streamed(builder, builder.store(line, written, align=LINE_BYTES))
        return context.get_dummy_value()

    return types.void(source, target), generate


def _full_fence(typing_context: Any) -> Any:
    """Order all stores before it, non-temporal ones too, before all that follow."""
    del typing_context

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        del signature, args
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


_stream_line: Any = intrinsic(_copy_line)
_fence: Any = intrinsic(_full_fence)


@loop
def stream(source: int, target: int, size: int) -> None:
    """Copy ``size`` bytes from one address to another; whole lines of the target past the caches.

    Call `settle` before anybody else may look.
    """
    head = min(-target % LINE_BYTES, size)
    lines_end = head + (size - head) // LINE_BYTES * LINE_BYTES
    read, written = bytes_at(source, size), bytes_at(target, size)
    for i in range(head):
        written[i] = read[i]
    for start in range(head, lines_end, LINE_BYTES):
        _stream_line(as_pointer(source + start), as_pointer(target + start))
    for i in range(lines_end, size):
        written[i] = read[i]


@loop
def settle() -> None:
    """Make what was streamed visible to other threads before anything that is written later."""
    _fence()
