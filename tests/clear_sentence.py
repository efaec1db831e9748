"""What every message about a mistake keeps to: short, in its own words, with place and key."""

from __future__ import annotations

import itertools

# words of Python and of its library, which say nothing to whoever wrote a file
INTERNALS = (
    "Errno",
    "Error(",
    "NoneType",
    "<class",
    "codec can't",
    "datetime",
    "int_max_str_digits",
    "object is",
    "object of type",
    "recursion",
    "unpack",
    "utf-8-sig",
)
LONGEST = 700


def check_clear(error: BaseException | str, begins: str = "", names: str = "") -> None:
    """Assert that a message is a clear sentence.

    Args:
        error: the message, or what was raised.
        begins: what it must begin with: the kind of file and its path.
        names: the key that it must name.
    """
    message = str(error)
    assert message.startswith(begins), message
    assert names in message, f"{names!r} is not named: {message}"
    found = [words for words in INTERNALS if words in message]
    assert not found, f"{found[0]!r} in: {message}"
    words = [word.strip(":,;'") for word in message.split()]
    twice = [a for a, b in itertools.pairwise(words) if a == b and a]
    assert not twice, f"{twice[0]!r} twice in: {message}"
    assert len(message) - len(begins) <= LONGEST, message
    assert message.count("\n") == 0, message
