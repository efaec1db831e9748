"""What the fields of a format hold: looked at before anything is computed from them.

A number given as text, or as a float, would otherwise fail somewhere inside a codec, or pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, TypeGuard

from thinwire.errors import FormatError

__all__ = ["check_field_types", "check_numel", "check_shape", "check_text"]

# Field, what it is in words, its types beside None.
_NUMBERS: tuple[tuple[str, str, type], ...] = (
    ("block", "a whole number of elements, such as 128", int),
    ("rank", "a whole number of factors, such as 4", int),
    ("percentile", "a decimal.Decimal, such as Decimal('99')", Decimal),
    ("share", "a decimal.Decimal, such as Decimal('0.01')", Decimal),
)


def check_field_types(fmt: Any) -> None:
    """Refuse fields of types that a format cannot have.

    Raises:
        FormatError: names the field and what it holds.
    """
    if not isinstance(fmt.family, str) or not is_whole(fmt.bits):
        raise FormatError(
            f"a format has a family and its bits, such as family='int', bits=4, not "
            f"family={fmt.family!r}, bits={fmt.bits!r}; write parse_format('int4/128')"
        )
    for field, words, kind in _NUMBERS:
        value = getattr(fmt, field)
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise FormatError(f"{field} of a format is {words}, not {value!r}")
    options = fmt.options
    if not isinstance(options, frozenset) or not all(isinstance(name, str) for name in options):
        raise FormatError(
            f"options of a format are a frozenset of names, such as frozenset({{'asym'}}), not "
            f"{options!r}"
        )
    shape = fmt.shape
    if shape is not None and not (
        isinstance(shape, tuple) and len(shape) == 2 and all(map(is_whole, shape))
    ):
        raise FormatError(f"shape of a format is (rows, columns), such as (64, 32), not {shape!r}")


def check_text(text: object) -> str:
    """The text of a format, without spaces around it.

    Raises:
        FormatError: it is no text.
    """
    if not isinstance(text, str):
        raise FormatError(f"a format is a text such as 'int4/128', not {text!r}")
    return text.strip()


def check_numel(numel: object) -> None:
    """Refuse what is no number of elements."""
    if not is_whole(numel):
        raise FormatError(f"a number of elements is a whole number, not {numel!r}: use x.numel()")
    if numel < 0:
        raise FormatError(f"a tensor cannot have {numel} elements: give 0 or more")


def check_shape(shape: Sequence[int]) -> None:
    """Refuse what is no shape of a tensor."""
    if not isinstance(shape, Sequence) or not all(is_whole(size) and size >= 0 for size in shape):
        raise FormatError(
            f"a shape is a sequence of whole numbers, such as (64, 32), not {shape!r}: use x.shape"
        )


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether it is a whole number; True and False are none here."""
    return isinstance(value, int) and not isinstance(value, bool)
