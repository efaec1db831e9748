"""How a message repeats what a user gave: as people write it, and never at length.

A text keeps its quotes, a truth value, a date or a table is written as TOML and JSON write it, and
what is longer than a line can hold ends in three dots.
"""

from __future__ import annotations

import datetime
from itertools import islice

__all__ = ["quoted", "shortened"]

LONGEST = 60
# of containers: what lies deeper, or comes later, would be cut off anyway
DEEPEST, MOST_ENTRIES = 3, 12
LARGEST_DIGITS = 300  # Python itself refuses to print integers of some thousand digits


def shortened(text: object, longest: int = LONGEST) -> str:
    """The text of something, cut off where it gets too long to be read.

    Args:
        text: whatever ``str`` takes, such as a path.
        longest: characters that are kept.
    """
    whole = str(text)
    return whole if len(whole) <= longest else f"{whole[:longest]}..."


def quoted(value: object) -> str:
    """A value as it may stand in a message: a text in quotes, all else as a file would give it."""
    if isinstance(value, str):
        return repr(shortened(value))
    return shortened(_written(value, DEEPEST))


def _written(value: object, depth: int) -> str:
    if isinstance(value, str):
        return repr(shortened(value))
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and abs(value) >= 10**LARGEST_DIGITS:
        return f"a number of more than {LARGEST_DIGITS} digits"
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (list, dict)) and not depth:
        return "..."
    if isinstance(value, list):
        entries = [_written(item, depth - 1) for item in value[:MOST_ENTRIES]]
        return f"[{_joined(entries, len(value))}]"
    if isinstance(value, dict):
        entries = [
            f"{_key(key)} = {_written(item, depth - 1)}"
            for key, item in islice(value.items(), MOST_ENTRIES)
        ]
        return f"{{{_joined(entries, len(value))}}}"
    return repr(value)


def _joined(entries: list[str], number: int) -> str:
    return ", ".join(entries if len(entries) == number else [*entries, "..."])


def _key(key: object) -> str:
    """A key as it is, unless its characters would not show."""
    text = str(key)
    return shortened(text) if text.isprintable() else repr(shortened(text))
