"""Numbers of machines that lie where they must: each fault names its number and the rule."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from thinwire.errors import ConfigError
from thinwire.quoting import quoted

__all__ = ["check_costs", "check_fields", "check_number"]


def check_number(owner: str, value: float, *, may_be_zero: bool = False) -> None:
    """Raise unless a number is finite and above zero, or at least zero where that may be.

    Raises:
        ConfigError: names the number and what it must be.
    """
    if not (0 < value < math.inf or (value == 0 and may_be_zero)):
        bound = "at least 0" if may_be_zero else "above 0"
        finite = "" if math.isfinite(value) else " and finite"
        raise ConfigError(f"{owner} is {quoted(value)}, but must be {bound}{finite}")


def check_fields(owner: str, item: Any, *, zero: Collection[str] = ()) -> None:
    """Raise unless all numbers among a dataclass's fields are in range.

    Args:
        owner: what it is called in messages.
        item: the dataclass.
        zero: the fields that may be zero.

    Raises:
        ConfigError: names the field.
    """
    for field in dataclasses.fields(item):
        value = getattr(item, field.name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            check_number(f"{owner}: {field.name}", value, may_be_zero=field.name in zero)


def check_costs(
    owner: str, costs: Mapping[str, float], kinds: Iterable[str], *, may_be_zero: bool = False
) -> None:
    """Raise unless a table has a number in range for each of some kinds and for no other.

    Raises:
        ConfigError: names the kind that is missing, not known, or whose number is out of range.
    """
    known = tuple(kinds)
    for kind, cost in costs.items():
        if kind not in known:
            raise ConfigError(f"{owner}: {quoted(kind)} is not one of {', '.join(known)}")
        check_number(f"{owner}: {kind}", cost, may_be_zero=may_be_zero)
    missing = [kind for kind in known if kind not in costs]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise ConfigError(
            f"{owner}: {', '.join(missing)} {verb} missing; give a number for each of "
            f"{', '.join(known)}, which belong together"
        )
