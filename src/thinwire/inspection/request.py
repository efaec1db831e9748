"""What is asked of an inspection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from thinwire.errors import ConfigError, FormatError
from thinwire.formats import WireFormat, parse_format
from thinwire.inspection.stored import StoredTensor
from thinwire.recipe import Recipe
from thinwire.rules import matches

__all__ = [
    "DEFAULT_FORMATS",
    "InspectRequest",
    "is_four_bit",
    "parse_exact",
    "parse_formats",
    "parse_patterns",
]

DEFAULT_FORMATS = (
    "int8/128",
    "e4m3/128",
    "int4/128",
    "int4/128+hadamard",
    "log4/128",
    "int2/64",
)
FOUR_BITS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectRequest:
    """What is inspected, and how much of it is shown.

    Attributes:
        formats: what every layer is sent in; at least one, no two equal.
        patterns: shell patterns on the names of layers, matched in any case.
        exact: a recipe, which decides what travels exactly and is not measured.
        top: how many of the worst layers get a histogram.
        rank_by: the format by which layers are ranked; ``None``: the first of 4 bits, or the first.

    Raises:
        ConfigError: there is no format, one is given twice, layers are to be ranked by another, or
            a pattern is missing or empty.
    """

    formats: tuple[WireFormat, ...] = field(
        default_factory=lambda: parse_formats(",".join(DEFAULT_FORMATS))
    )
    patterns: tuple[str, ...] = ("*",)
    exact: Recipe = field(default_factory=Recipe)
    top: int = 6
    rank_by: WireFormat | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be carried out."""
        if not self.formats or len(set(self.formats)) != len(self.formats):
            raise ConfigError(
                f"formats {', '.join(map(str, self.formats)) or 'none'}: give at least one, and "
                "none twice, for example int8/128,int4/128"
            )
        if self.rank_by is not None and self.rank_by not in self.formats:
            raise ConfigError(
                f"layers cannot be ranked by {self.rank_by}, which is not among the formats: add "
                f"it, or choose one of {', '.join(map(str, self.formats))}"
            )
        if not self.patterns or not all(self.patterns):
            raise ConfigError(
                f"patterns {self.patterns!r}: give at least one, and none that is empty; '*' is "
                "every layer"
            )
        if self.top < 0:
            raise ConfigError(f"the worst {self.top} layers cannot be shown: give 0 or more")

    @property
    def ranking(self) -> WireFormat:
        """The format by which layers are ranked."""
        return self.rank_by or (*filter(is_four_bit, self.formats), *self.formats)[0]

    def is_chosen(self, layer: str) -> bool:
        """Whether a layer's name matches one of the patterns."""
        return any(matches(pattern, layer) for pattern in self.patterns)

    def is_exact(self, tensor: StoredTensor) -> bool:
        """Whether a tensor travels uncompressed, and is not measured."""
        return self.exact.travels_exactly(tensor.name, tensor.shape)

    def check_matches(self, tensors: Sequence[StoredTensor]) -> None:
        """Raise if a pattern matches no tensor: a name that was mistyped would change nothing.

        The patterns that every recipe has are said of no file in particular, and may match none.

        Args:
            tensors: those of all files.

        Raises:
            ConfigError: names the pattern and some tensors.
        """
        usual = Recipe().exact
        for pattern in (*self.patterns, *(one for one in self.exact.exact if one not in usual)):
            if not any(matches(pattern, tensor.name) for tensor in tensors):
                names = ", ".join(tensor.name for tensor in tensors[:3])
                raise ConfigError(
                    f"no layer is called {pattern}; there are for example {names}; correct the "
                    "pattern or leave it out"
                )

    def check_carries(self, tensor: StoredTensor) -> None:
        """Raise if a format cannot carry a tensor of that shape.

        Raises:
            FormatError: names the layer, the format and what it needs.
        """
        if not self.is_exact(tensor):
            for fmt in self.formats:
                try:
                    fmt.for_shape(tensor.shape)
                except FormatError as error:
                    raise FormatError(f"layer {tensor.name}: {error}") from error


def is_four_bit(fmt: WireFormat) -> bool:
    """Whether the codes of a format have four bits."""
    return fmt.bits == FOUR_BITS


def parse_formats(text: str) -> tuple[WireFormat, ...]:
    """Formats separated by commas.

    Raises:
        FormatError: one of them does not parse.
        ConfigError: there is nothing before or after a comma.
    """
    parts = text.split(",")
    if not all(part.strip() for part in parts):
        raise ConfigError(
            f"--formats {text!r}: a format is missing; write for example --formats "
            "int8/128,int4/128"
        )
    return tuple(map(parse_format, parts))


def parse_exact(text: str) -> Recipe:
    """A recipe with these patterns of what travels exactly.

    Args:
        text: patterns as in a recipe's ``exact``, separated by commas; ``none`` sends everything
            in the formats, small layers too.

    Raises:
        ConfigError: a pattern is empty.
    """
    if text.strip() == "none":
        return Recipe(exact=(), min_numel=0)
    return Recipe(exact=parse_patterns(text, "--exact"))


def parse_patterns(text: str, option: str) -> tuple[str, ...]:
    """Shell patterns separated by commas, without the spaces around them.

    Args:
        text: what was typed.
        option: after which option.

    Raises:
        ConfigError: a pattern is empty.
    """
    patterns = tuple(part.strip() for part in text.split(","))
    if not all(patterns):
        every = "none" if option == "--exact" else "'*'"
        raise ConfigError(
            f"{option} {text!r}: has an empty pattern, which matches nothing; leave it out, or "
            f"write {every} for every layer"
        )
    return patterns
