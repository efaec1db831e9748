"""Reads TOML and JSON files that a user wrote: one clear sentence for whatever is wrong with one.

    tables = read_toml(path, "cluster file", "give one that thinwire calibrate wrote")

Every sentence begins with the kind of file and its path, and ends with what to do.
"""

from __future__ import annotations

import contextlib
import json
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from thinwire.errors import ConfigError
from thinwire.file_kind import read_file_text
from thinwire.quoting import quoted, shortened

__all__ = ["errors_in", "file_label", "read_json", "read_toml"]

LONGEST_PATH = 300
BYTE_ORDER_MARK = "\ufeff"


def file_label(kind: str, path: Path) -> str:
    """What a message calls a file: its kind and its path."""
    return f"{kind} {shortened(path, LONGEST_PATH)}"


def read_toml(path: Path, kind: str, advice: str) -> dict[str, Any]:
    """The tables of a TOML file.

    Args:
        path: of the file.
        kind: what it is, for messages.
        advice: what to do when it cannot be read, for messages.

    Raises:
        ConfigError: it cannot be read, is no text, or no TOML.
    """
    tables: dict[str, Any] = _read(path, kind, advice, "TOML", tomllib.loads)
    return tables


def read_json(path: Path, kind: str, advice: str) -> dict[str, Any]:
    """The object of a JSON file.

    Args:
        path: of the file.
        kind: what it is, for messages.
        advice: what to do when it cannot be read or holds no object, for messages.

    Raises:
        ConfigError: it cannot be read, is no text, no JSON, or no object at its top.
    """
    content = _read(path, kind, advice, "JSON", json.loads)
    if not isinstance(content, dict):
        raise ConfigError(
            f"{file_label(kind, path)}: holds no JSON object, which begins with a brace; {advice}"
        )
    return content


@contextlib.contextmanager
def errors_in(label: str) -> Iterator[None]:
    """Begin the sentence of a ConfigError that is raised in the block with where its fault lies."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{label}: {error}") from error


def _read(path: Path, kind: str, advice: str, language: str, parse: Callable[[str], Any]) -> Any:
    label = file_label(kind, path)
    try:
        text = read_file_text(path)
    except OSError as error:
        reason = error.strerror or "no reason is known"
        raise ConfigError(f"{label}: cannot be read ({reason}); {advice}") from error
    except UnicodeDecodeError as error:
        fault = f"it is no text in UTF-8, from byte {error.start} on"
        raise ConfigError(f"{label}: not a {language} file ({fault}); {advice}") from error
    except ValueError as error:  # a zero byte in it
        raise ConfigError(f"{kind} {quoted(str(path))}: is no path of a file; {advice}") from error
    if text.startswith(BYTE_ORDER_MARK):
        raise ConfigError(f"{label}: begins with a byte order mark; save it as UTF-8 without one")
    try:
        return parse(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{label}: not a {language} file ({_fault(error)}); {advice}") from error


def _fault(error: Exception) -> str:
    """What a parser found, without the words of Python's own library."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at line {error.lineno}, column {error.colno}"
    if isinstance(error, tomllib.TOMLDecodeError):
        # a key that is declared twice is named as a tuple
        return shortened(re.sub(r"\(('.*?'),?\)", r"\1", str(error)), 200)
    if isinstance(error, RecursionError):
        return "its values are nested too deeply"
    return "it holds a number of too many digits"
