"""Options that take a path: an empty one is a mistake, such as of a variable that is not set."""

from __future__ import annotations

from pathlib import Path

import typer

__all__ = ["named_path"]


def named_path(text: str) -> Path:
    """The path that a user named; to be given as an option's ``parser``.

    Python reads an empty path as the present folder, which nobody means by it.

    Raises:
        typer.BadParameter: it is empty.
    """
    if not str(text).strip():
        raise typer.BadParameter("it is empty: name a path, or leave the option out")
    return Path(text)
