"""Look-ups in short tables, as vector code: 64 bytes at a time where vectors are wide.

A table is a flight of stairs: what stands at a byte is the sum of the rises of all stairs that
begin at that byte or before. Comparing with each of them takes two instructions for a whole vector
of bytes, and fetching from a table one or more for every byte.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from thinwire.wire.kernels.compiled import element

__all__ = ["climb", "rises_between", "steps_of"]

_BYTE = ir.IntType(8)

# As many bytes; there is code of its own for each of them.
Steps = tuple[np.uint8, ...]


def steps_of(bytes_: Iterable[int]) -> Steps:
    """Bytes in the form that `climb` takes."""
    return tuple(np.uint8(byte) for byte in bytes_)


def rises_between(heights: Iterable[int]) -> Steps:
    """From each height to the next, modulo 256: a rise may be a fall."""
    return steps_of((high - low) % 256 for low, high in pairwise(heights))


def _sum_rises(typing_context: Any, byte: Any, starts: Any, rises: Any) -> Any:
    del typing_context

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        del context
        nothing = ir.Constant(_BYTE, 0)
        total = nothing
        for index in range(len(signature.args[1])):
            start, rise = (builder.extract_value(item, index) for item in args[1:])
            is_reached = builder.icmp_unsigned(">=", args[0], start)
            total = builder.add(total, builder.select(is_reached, rise, nothing))
        return total

    return types.uint8(byte, starts, rises), generate


_sum_reached: Any = intrinsic(_sum_rises)


@element
def climb(byte: Any, starts: Any, rises: Any) -> Any:
    """The sum of the rises of the stairs that start at a byte or before, modulo 256: uint8."""
    return _sum_reached(byte, starts, rises)
