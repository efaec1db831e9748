"""The form of a value that a file gives: the same as that of the value it replaces.

One rule for numbers, texts, lists and tables, so that no wrong value gets as far as arithmetic.
"""

from __future__ import annotations

import math
from typing import Any

from thinwire.errors import ConfigError
from thinwire.quoting import quoted, shortened

__all__ = ["LARGEST", "MOST_LAYERS", "check_at_most", "check_form", "is_number"]

# of hosts, tokens, a width or a vocabulary: what is predicted are products of these
LARGEST = 10**9
# of any unit: no machine is beyond, and no product of such numbers leaves the range of a float
SMALLEST_NUMBER, LARGEST_NUMBER = 1e-30, 1e30
# twice as many as the deepest published transformer has (arXiv 2203.00555); a plan takes time for
# every layer where layers are small, about a second for this many
MOST_LAYERS = 2000


def check_form(owner: str, value: Any, present: Any) -> None:
    """Raise unless a value may stand where another one stands.

    A table holds values of the form of those it replaces, whatever their keys; an empty list or
    table as the present value takes any.

    Args:
        owner: what the value belongs to, for the message.
        value: as the file gives it.
        present: what it replaces; ``None`` stands for a number that is not known.

    Raises:
        ConfigError: it is of another form, or a number too large or too small to be one of a
            machine; says which it must be.
    """
    if isinstance(present, bool):
        is_like, wanted = isinstance(value, bool), "true or false"
    elif present is None or isinstance(present, (int, float)):
        is_like, wanted = is_number(value), "a finite number"
    elif isinstance(present, str):
        is_like, wanted = isinstance(value, str), "a text"
    else:
        is_like = isinstance(value, type(present))
        wanted = "a table" if isinstance(present, dict) else "a list"
    if not is_like:
        raise ConfigError(f"{owner} = {quoted(value)} is not of the right form: give {wanted}")
    if is_number(value) and value and not SMALLEST_NUMBER <= abs(value) <= LARGEST_NUMBER:
        raise ConfigError(
            f"{owner} = {quoted(value)} is beyond any machine: give a number from "
            f"{SMALLEST_NUMBER:g} to {LARGEST_NUMBER:g}"
        )
    if isinstance(value, dict) and present:
        for key, item in value.items():
            named = f"{owner}: {shortened(key)}"
            check_form(named, item, present.get(key, next(iter(present.values()))))
    elif isinstance(value, list) and present:
        for place, item in enumerate(value, start=1):
            check_form(f"{_entry(owner)}{place}", item, present[0])


def check_at_most(owner: str, count: int, most: int = LARGEST) -> None:
    """Raise if a count is beyond anything that can be built, or planned in a moment.

    Args:
        owner: what is counted, for the message.
        count: how many.
        most: that there may be.

    Raises:
        ConfigError: it is above that.
    """
    if count > most:
        raise ConfigError(f"{owner} = {quoted(count)} is too large: give {most:,} or less")


def is_number(value: Any) -> bool:
    """Whether a value is a number that arithmetic can take: finite, and no truth value."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:  # an integer beyond the largest float
        return False


def _entry(owner: str) -> str:
    """What an entry's number follows: an entry of an entry is 2.1, the first of the second."""
    before, _, last = owner.rpartition(": entry ")
    return f"{owner}." if before and last.isdecimal() else f"{owner}: entry "
