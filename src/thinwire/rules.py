"""Which format a parameter travels in, by its name.

    *embed*  -> int8/128      the first pattern that matches decides
    *head*   -> bf16
    the rest -> int4/128

Whatever knows a format for every name is a source of formats: a rule, which is part of a recipe, or
a choice that was made from what gradients looked like.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from thinwire.errors import ConfigError, FormatError
from thinwire.families import FAMILIES
from thinwire.formats import WireFormat, parse_format
from thinwire.quoting import quoted

__all__ = [
    "ChosenFormats",
    "FormatRule",
    "FormatSource",
    "matches",
    "parse_exceptions",
    "with_other_bits",
]


class FormatSource(Protocol):
    """Knows the format of every parameter. Immutable: layouts are kept as long as their source."""

    def format_of(self, parameter: str) -> WireFormat:
        """The format of a parameter, given its full name in the model."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class FormatRule:
    """Formats by name of the parameter.

    Attributes:
        usual: the format of a parameter that no pattern matches.
        exceptions: shell patterns and the formats of the parameters they match; the first counts.
    """

    usual: WireFormat
    exceptions: tuple[tuple[str, WireFormat], ...] = ()

    def is_exception(self, parameter: str) -> bool:
        """Whether a pattern matches a parameter, given its full name in the model."""
        return any(matches(pattern, parameter) for pattern, _ in self.exceptions)

    def format_of(self, parameter: str) -> WireFormat:
        """The format of a parameter, given its full name in the model."""
        for pattern, fmt in self.exceptions:
            if matches(pattern, parameter):
                return fmt
        return self.usual

    @property
    def formats(self) -> tuple[WireFormat, ...]:
        """All formats that it may give."""
        return (self.usual, *(fmt for _, fmt in self.exceptions))


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class ChosenFormats:
    """Formats chosen one by one for some parameters, and a rule for the others.

    Attributes:
        chosen: formats by full name.
        rule: for every other parameter.
    """

    chosen: Mapping[str, WireFormat]
    rule: FormatRule

    def format_of(self, parameter: str) -> WireFormat:
        """The format of a parameter, given its full name in the model."""
        return self.chosen.get(parameter) or self.rule.format_of(parameter)


def with_other_bits(fmt: WireFormat) -> tuple[WireFormat, ...]:
    """A format and those of its family that differ from it in the number of bits only, by bits."""
    formats = []
    for bits in FAMILIES[fmt.family].bits:
        try:
            formats.append(replace(fmt, bits=bits))
        except FormatError:
            continue  # int8 has no learned levels
    return tuple(formats)


def matches(pattern: str, parameter: str) -> bool:
    """Whether a shell pattern matches a parameter's full name, in any case."""
    return fnmatch.fnmatchcase(parameter.lower(), pattern.lower())


def parse_exceptions(pairs: tuple[tuple[str, str], ...]) -> tuple[tuple[str, WireFormat], ...]:
    """Patterns with their formats parsed.

    Raises:
        ConfigError: a format does not parse, or a pattern can match nothing.
    """
    parsed: dict[str, WireFormat] = {}
    for pattern, text in pairs:
        if pattern in parsed:
            raise ConfigError(
                f"pattern {quoted(pattern)} is given twice, and only the first would count: leave "
                "one out"
            )
        if pattern in ("", "1d"):
            raise ConfigError(
                f"{quoted(pattern)} is no pattern of a parameter's name: write for example "
                "'*embed*'"
            )
        parsed[pattern] = parse_format(text)
    return tuple(parsed.items())
