"""The form of a value that a file gives: the same as that of the value it replaces.

One rule for numbers, texts, lists and tables, so that no wrong value gets as far as arithmetic.
"""

from __future__ import annotations

import math
from typing import Any

from thinwire.errors import ConfigError

__all__ = ["check_below_limit", "check_form", "is_number"]

# of hosts, tokens, layers, a width or a vocabulary: what is predicted are products of these
LARGEST = 10**9


def check_form(owner: str, value: Any, present: Any) -> None:
    """Raise unless a value may stand where another one stands.

    A table holds values of the form of those it replaces, whatever their keys; an empty list or
    table as the present value takes any.

    Args:
        owner: what the value belongs to, for the message.
        value: as the file gives it.
        present: what it replaces; ``None`` stands for a number that is not known.

    Raises:
        ConfigError: it is of another form; says of which it must be.
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
        raise ConfigError(f"{owner} = {_shortened(value)} is not of the right form: give {wanted}")
    if isinstance(value, dict) and present:
        for key, item in value.items():
            check_form(f"{owner}: {key}", item, present.get(key, next(iter(present.values()))))
    elif isinstance(value, list) and present:
        for item in value:
            check_form(f"{owner}: an entry", item, present[0])


def check_below_limit(owner: str, count: int) -> None:
    """Raise if a count is beyond anything that can be built.

    Args:
        owner: what is counted, for the message.
        count: how many.

    Raises:
        ConfigError: it is above 1e9.
    """
    if count > LARGEST:
        raise ConfigError(f"{owner} is above {LARGEST:.0e}, which nothing has: correct it")


def is_number(value: Any) -> bool:
    """Whether a value is a number that arithmetic can take: finite, and no truth value."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:  # an integer beyond the largest float
        return False


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
