"""Shifts of the width of the word. Numba's own, by a count that is no constant, are of 64 bits.

In vector code that is eight times the work for a byte, and twice for an int32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba.extending import intrinsic

from thinwire.wire.kernels.compiled import element

__all__ = ["left", "right"]


def _shift_by(instruction: str) -> Callable[..., Any]:
    def shift(typing_context: Any, word: Any, count: Any) -> Any:
        del typing_context

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            own_width = context.cast(builder, args[1], signature.args[1], signature.return_type)
            return getattr(builder, instruction)(args[0], own_width)

        return word(word, count), generate

    return intrinsic(shift)


_left, _right = _shift_by("shl"), _shift_by("lshr")


@element
def left(word: Any, count: Any) -> Any:
    """``word << count``; the count is below the bits of the word."""
    return _left(word, count)


@element
def right(word: Any, count: Any) -> Any:
    """``word >> count`` with zeros from above, of signed words too; as for `left`."""
    return _right(word, count)
