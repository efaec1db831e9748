"""Which elements of a gradient a residual belongs to, and how much of it enters the reduced one.

A residual is added to what a rank encodes next. What that adds to the reduced gradient depends on
where in the reduction it happens:

    part           what lost it                                     weight in the reduced gradient
    to R           a rank's contribution to slot R                  1 / ranks
    within to R    the same, in the first of two hops               1 / ranks
    across to R    a host's sum for slot R, in the second hop       1 / ranks
    matrix         a rank's whole gradient, factored                1 / ranks
    result         the average, on its way back to all ranks        1

    hybrid sharding, after "to R" within the host:
    across to H    a host's average for a slot, dealt out to hosts  1 / hosts
    across result  the average over hosts, on its way back          1

Where FSDP2 divides sums by a fixed number, that stands for the number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from thinwire.comm.layout import even_piece_numel, row_piece_numel
from thinwire.recipe import Recipe
from thinwire.sharding.arrangement import Arrangement

__all__ = ["Gradient", "Portion", "Portions", "portions_of", "rows_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """A parameter's gradient.

    Attributes:
        name: the parameter's full name in the model.
        shape: its global shape.
    """

    name: str
    shape: torch.Size


@dataclass(frozen=True, slots=True)
class Portion:
    """What one residual stands for.

    Attributes:
        part: names the residual.
        elements: those of the flattened gradient that it belongs to.
        weight: by what it is multiplied on its way into the reduced gradient.
    """

    part: str
    elements: range
    weight: float


class Portions(Protocol):
    """The residuals of gradients on the ranks of one arrangement."""

    def kept(self, gradient: Gradient, rank: int) -> Iterator[Portion]:
        """Those that a rank may keep; several may belong to the same elements."""

    def taken(self, gradient: Gradient, rank: int) -> Portion:
        """The one by which a rank takes over what others have lost.

        All ranks' together cover every element; ranks that share elements take over the same, and
        the weight is theirs together. It is the last place in the reduction where something is
        lost: what is added there is not coded once more on the way.
        """


def portions_of(recipe: Recipe, arrangement: Arrangement) -> Portions:
    """Where a recipe keeps residuals on the ranks of an arrangement."""
    if recipe.stage == 0:
        return _OfWhole(recipe, arrangement)
    return (_OfHybrid if recipe.hybrid else _OfShards)(recipe, arrangement)


def rows_of(shape: torch.Size, num_shards: int, place: int) -> range:
    """The elements of a parameter in one shard of its rows, as FSDP2 deals them out."""
    piece = row_piece_numel(shape, num_shards)
    return range(shape.numel())[place * piece : (place + 1) * piece]


class _OfWhole:
    """Stage 0 and local steps: an all-reduce of every parameter by itself."""

    def __init__(self, recipe: Recipe, arrangement: Arrangement) -> None:
        self._recipe, self._size = recipe, arrangement.size

    def kept(self, gradient: Gradient, rank: int) -> Iterator[Portion]:
        everything, weight = range(gradient.shape.numel()), 1 / self._size
        yield Portion("matrix", everything, weight)
        for receiver in range(self._size):
            yield Portion(f"to {receiver}", self._slice(gradient, receiver), weight)
        yield Portion("result", self._slice(gradient, rank), 1.0)

    def taken(self, gradient: Gradient, rank: int) -> Portion:
        if _is_factored(self._recipe, gradient):
            # factors are linear in the mean of all matrices: whose it is does not matter
            return Portion("matrix", range(gradient.shape.numel()), 1.0)
        return Portion("result", self._slice(gradient, rank), 1.0)

    def _slice(self, gradient: Gradient, rank: int) -> range:
        everything = range(gradient.shape.numel())
        return _cut(everything, self._size, _block(self._recipe, gradient), rank)


class _OfShards:
    """FSDP2 over all ranks: a reduce-scatter in one hop, or in two."""

    def __init__(self, recipe: Recipe, arrangement: Arrangement) -> None:
        self._recipe, self._arrangement = recipe, arrangement
        self._weight = 1 / (arrangement.divisor or arrangement.num_shards)

    def kept(self, gradient: Gradient, rank: int) -> Iterator[Portion]:  # noqa: ARG002 - the same for all
        for receiver in range(self._arrangement.num_shards):
            for hop in ("to", "within to", "across to"):
                yield self._portion(gradient, hop, receiver)

    def taken(self, gradient: Gradient, rank: int) -> Portion:
        hop = "to"
        if self._recipe.reduces_within and self._arrangement.has_two_levels:
            hop = "across to" if _is_lossy(self._recipe, gradient) else "within to"
        return self._portion(gradient, hop, rank)

    def _portion(self, gradient: Gradient, hop: str, receiver: int) -> Portion:
        rows = rows_of(gradient.shape, self._arrangement.num_shards, receiver)
        return Portion(f"{hop} {receiver}", rows, self._weight)


class _OfHybrid:
    """FSDP2 within the host, and an average across hosts of what each rank holds."""

    def __init__(self, recipe: Recipe, arrangement: Arrangement) -> None:
        self._recipe, self._per_host = recipe, arrangement.num_shards
        self._num_hosts = arrangement.size // arrangement.num_shards
        self._weight_in_host = 1 / (arrangement.divisor or self._per_host)

    def kept(self, gradient: Gradient, rank: int) -> Iterator[Portion]:
        host, place = divmod(rank, self._per_host)
        for receiver in range(self._per_host):
            rows, weight = self._rows(gradient, receiver), self._weight_in_host / self._num_hosts
            yield Portion(f"to {receiver}", rows, weight)
        for receiver in range(self._num_hosts):
            part = self._slice(gradient, place, receiver)
            yield Portion(f"across to {receiver}", part, 1 / self._num_hosts)
        yield Portion("across result", self._slice(gradient, place, host), 1.0)

    def taken(self, gradient: Gradient, rank: int) -> Portion:
        host, place = divmod(rank, self._per_host)
        if self._num_hosts > 1 and _is_lossy(self._recipe, gradient):
            return Portion("across result", self._slice(gradient, place, host), 1.0)
        # the ranks of this place on all hosts take over the same
        return Portion(f"to {place}", self._rows(gradient, place), self._weight_in_host)

    def _rows(self, gradient: Gradient, place: int) -> range:
        return rows_of(gradient.shape, self._per_host, place)

    def _slice(self, gradient: Gradient, place: int, host: int) -> range:
        rows, block = self._rows(gradient, place), _block(self._recipe, gradient)
        return _cut(rows, self._num_hosts, block, host)


def _cut(elements: range, num_slices: int, block: int, index: int) -> range:
    """One of the even slices into which elements are cut at multiples of ``block``."""
    piece = even_piece_numel(len(elements), num_slices, block)
    return elements[index * piece : (index + 1) * piece]


def _block(recipe: Recipe, gradient: Gradient) -> int:
    if recipe.travels_exactly(gradient.name, gradient.shape):
        return 1
    return recipe.grad_rule.format_of(gradient.name).block or 1


def _is_factored(recipe: Recipe, gradient: Gradient) -> bool:
    if recipe.travels_exactly(gradient.name, gradient.shape):
        return False
    return recipe.grad_rule.format_of(gradient.name).factors_of(gradient.shape) is not None


def _is_lossy(recipe: Recipe, gradient: Gradient) -> bool:
    """Whether fp32 sums lose something in the format of ``grads``."""
    return recipe.grad_rule.format_of(gradient.name).family != "fp32"
