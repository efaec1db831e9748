"""What adaptive formats keep to: as little error as so many bytes allow, or the other way round.

Both see a table of parameters x candidates: the bytes that each takes, and what each would lose.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from thinwire.errors import ConfigError
from thinwire.wire.allocation import cheapest_choices

__all__ = ["Budget", "ByteBudget", "ErrorBudget"]

Table = Sequence[Sequence[float]]


class Budget(Protocol):
    """Chooses one candidate for every parameter, by its column in the tables."""

    def limit_bytes(self, numel: int) -> float:
        """What ``numel`` elements may take; infinite where bytes are not what is limited."""

    def first_choice(self, sizes: Table, numel: int) -> int:
        """The column for all parameters while nothing is known of them.

        Args:
            sizes: bytes of every candidate.
            numel: elements of all parameters together.

        Raises:
            ConfigError: no candidate keeps to the budget.
        """

    def choose(self, losses: Table, sizes: Table, numel: int, square: float) -> list[int]:
        """The column of every parameter.

        Args:
            losses: sum of squared errors of every candidate.
            sizes: bytes of every candidate.
            numel: elements of all parameters together.
            square: sum of squares of all values that the losses are of.
        """


@dataclass(frozen=True, slots=True)
class ByteBudget:
    """The least error that so many bytes allow.

    Attributes:
        mean_bits: bits per element on the wire, scales included, that all parameters together may
            take on average.

    Raises:
        ConfigError: it is no finite number above 0.
    """

    mean_bits: float

    def __post_init__(self) -> None:
        """Refuse what is no number of bits."""
        if not _is_number(self.mean_bits) or self.mean_bits <= 0:
            raise ConfigError(f"mean_bits is a number above 0, such as 4.5, not {self.mean_bits!r}")

    def limit_bytes(self, numel: int) -> int:
        """What ``numel`` elements may take."""
        return int(self.mean_bits * numel / 8)

    def first_choice(self, sizes: Table, numel: int) -> int:
        """The candidate of most bytes in which all parameters may travel."""
        limit_bytes = self.limit_bytes(numel)
        totals = _totals(sizes)
        fitting = [total for total in totals if total <= limit_bytes]
        if not fitting:
            raise ConfigError(
                f"adaptive bits: all parameters together may take {limit_bytes} bytes, and take "
                f"{min(totals):g} in the smallest format: raise the mean bits, or offer a smaller "
                "format"
            )
        return totals.index(max(fitting))

    def choose(self, losses: Table, sizes: Table, numel: int, square: float) -> list[int]:  # noqa: ARG002 - bytes do not depend on values
        """The choice that loses least within the bytes."""
        return cheapest_choices(losses, sizes, self.limit_bytes(numel))


@dataclass(frozen=True, slots=True)
class ErrorBudget:
    """The fewest bytes that so large an error allows (L-GreCo, arXiv 2210.17357, algorithm 1).

    Attributes:
        relative: the 2-norm of what is lost of all parameters together, as a part of the 2-norm of
            their values.

    Raises:
        ConfigError: it is no finite number above 0.
    """

    relative: float

    def __post_init__(self) -> None:
        """Refuse what is no error."""
        if not _is_number(self.relative) or self.relative <= 0:
            raise ConfigError(f"relative is a number above 0, such as 0.05, not {self.relative!r}")

    def limit_bytes(self, numel: int) -> float:  # noqa: ARG002 - any number of bytes
        """No limit."""
        return math.inf

    def first_choice(self, sizes: Table, numel: int) -> int:  # noqa: ARG002 - any number of bytes
        """The candidate of most bytes, for errors are not known yet."""
        totals = _totals(sizes)
        return totals.index(max(totals))

    def choose(self, losses: Table, sizes: Table, numel: int, square: float) -> list[int]:  # noqa: ARG002 - any number of bytes
        """The choice of fewest bytes within the error, or with a warning that of least error."""
        limit = self.relative**2 * square
        least = sum(map(min, losses))
        if least > limit:
            warnings.warn(
                f"adaptive error: gradients may lose {self.relative:g} of their norm, and lose "
                f"{(least / square) ** 0.5:.3g} in the formats that lose least, which they travel "
                "in now: allow more, or give grads smaller blocks",
                stacklevel=2,
            )
            return [row.index(min(row)) for row in map(list, losses)]
        return cheapest_choices(sizes, losses, limit)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _totals(sizes: Table) -> list[float]:
    """Bytes of all parameters together in every candidate."""
    return [sum(column) for column in zip(*sizes, strict=True)]
