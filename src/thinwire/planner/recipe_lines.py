"""A recipe's text in several lines, where it is too long for one: no two look alike then."""

from __future__ import annotations

import textwrap

__all__ = ["recipe_lines"]


def recipe_lines(name: str, width: int) -> str:
    """The whole text in lines of at most ``width`` characters, broken between its options.

    Args:
        name: what the recipe calls itself.
        width: characters of a line; an option that is longer is broken within.
    """
    spaced = name.replace(":", ": ")
    lines = textwrap.wrap(spaced, width, break_on_hyphens=False)
    return "\n".join(line.replace(": ", ":") for line in lines)
