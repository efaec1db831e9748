"""What is said of wrong usage: the option, what was given, what works, and where to read on.

typer finds such mistakes before a verb runs. Its own words for a number are those of the library
that it parses with, and repeat neither the value nor an example; here they are made anew, for every
number of every verb.
"""

from __future__ import annotations

import re
from typing import Any

import typer

from thinwire.quoting import quoted

__all__ = ["explain_usage"]

# what a user typed, in typer's own messages: in quotes, or a word by itself
LONG_WORDS = re.compile(r"'([^']{60})[^']+'|(\S{60})\S{20,}")
# by the first word of the parser's kind of fault
NUMBERS = {"int": ("a whole number", "4"), "float": ("a number", "0.01")}
BOUNDS = {"greater_than_equal": ("ge", "at least"), "less_than_equal": ("le", "at most")}


def explain_usage(error: typer.TyperException) -> str:
    """One sentence for a mistake that typer found.

    Args:
        error: as typer raised it.
    """
    message = _number_fault(error) or LONG_WORDS.sub(
        lambda found: f"'{found[1]}...'" if found[1] else f"{found[2]}...", error.format_message()
    )
    context = getattr(error, "ctx", None)
    program = "thinwire" if context is None else context.command_path
    return f"{message.rstrip('.')}; see {program} --help"


def _number_fault(error: typer.TyperException) -> str:
    """What is wrong with a number; empty where the mistake is another one."""
    faults: list[dict[str, Any]] = getattr(error.__cause__, "errors", list)()
    parameter = getattr(error, "param", None)
    if len(faults) != 1 or parameter is None:
        return ""
    (fault,) = faults
    kind, given = str(fault["type"]), quoted(str(fault["input"]))
    option = "/".join(parameter.opts)
    if kind.endswith("_parsing_size"):
        return f"{option} {given}: this is too large; write a number of fewer digits"
    family, _, rest = kind.partition("_")
    if rest == "parsing" and family in NUMBERS:
        noun, example = NUMBERS[family]
        return f"{option} {given}: this is not {noun}; write one such as {example}"
    if kind in BOUNDS:
        key, words = BOUNDS[kind]
        return f"{option} {given}: give {words} {fault['ctx'][key]}"
    return ""
