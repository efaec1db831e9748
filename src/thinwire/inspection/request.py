"""What is asked of an inspection."""

from __future__ import annotations

from dataclasses import dataclass, field

from thinwire.errors import ConfigError, FormatError
from thinwire.formats import WireFormat, parse_format
from thinwire.inspection.stored import StoredTensor
from thinwire.recipe import Recipe
from thinwire.rules import matches

__all__ = ["DEFAULT_FORMATS", "InspectRequest", "is_four_bit", "parse_exact", "parse_formats"]

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
        ConfigError: there is no format, one is given twice, or layers are to be ranked by another.
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
    """
    return tuple(parse_format(part) for part in text.split(","))


def parse_exact(text: str) -> Recipe:
    """A recipe with these patterns of what travels exactly.

    Args:
        text: patterns as in a recipe's ``exact``, separated by commas; ``none`` sends everything
            in the formats, small layers too.
    """
    if text == "none":
        return Recipe(exact=(), min_numel=0)
    return Recipe(exact=tuple(text.split(",")))
