"""Small layers that travel together, as ``thinwire.shard`` wraps them: each group is one layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby

from thinwire.grouping import consecutive_groups
from thinwire.planner.workload import DTYPE_BYTES, Layer
from thinwire.recipe import Recipe

__all__ = ["grouped_layers", "tells_layers_apart"]

# characters by which a pattern can match one index of a layer and not another
TELLING = set("0123456789?[")

Member = tuple[Layer, int]  # one layer: its run, and its index


def grouped_layers(layers: Iterable[Layer], recipe: Recipe) -> Iterator[Layer]:
    """The layers of a model as the recipe's ``grouped_bytes`` has them travel.

    Equal groups in a row are one run of layers, with the names of the first group, unless a pattern
    of the recipe could tell one from another.

    Args:
        layers: runs of equal layers, in the order of forward.
        recipe: decides how many bytes travel together.
    """
    limit_bytes, element_bytes = recipe.grouped_bytes, DTYPE_BYTES[recipe.compute]
    if limit_bytes == 0:
        yield from layers
        return
    merges = not tells_layers_apart(recipe)
    container: list[Member] = []  # its small layers so far, one by one
    for run in layers:
        is_large = element_bytes * run.numel > limit_bytes
        if is_large or (container and run.name != container[0][0].name):
            yield from _grouped(container, limit_bytes, element_bytes, merges=merges)
            container = []
        if is_large:
            yield run
        else:
            container += [(run, index) for index in range(run.start, run.start + run.count)]
    yield from _grouped(container, limit_bytes, element_bytes, merges=merges)


def tells_layers_apart(recipe: Recipe) -> bool:
    """Whether a pattern on names could match one index of a layer and not another."""
    rules = (recipe.weight_rule, recipe.grad_rule)
    named = [pattern for rule in rules for pattern, _ in rule.exceptions]
    patterns = "".join((*named, *(pattern for pattern in recipe.exact if pattern != "1d")))
    return not TELLING.isdisjoint(patterns)


def _grouped(
    members: list[Member], limit_bytes: int, element_bytes: int, *, merges: bool
) -> Iterator[Layer]:
    sizes_bytes = [element_bytes * run.numel for run, _ in members]
    groups = [
        [members[index] for index in indices]
        for indices in consecutive_groups(sizes_bytes, limit_bytes)
    ]
    if not merges:
        yield from (_joined(group) for group in groups)
        return
    # groups are equal where their layers are of the same runs, one by one
    for _, equal in groupby(groups, key=lambda group: [id(member[0]) for member in group]):
        first, *others = equal
        yield replace(_joined(first), count=1 + len(others))


def _joined(members: list[Member]) -> Layer:
    """One layer that does what several do, one after another."""
    layers = [run for run, _ in members]
    if len(members) == 1:
        return replace(layers[0], start=members[0][1], count=1)
    container = layers[0].name.partition("{}")[0].rstrip(".")
    parameters = (
        replace(parameter, name=name.removeprefix(f"{container}."))
        for layer, index in members
        for parameter, name in zip(layer.parameters, layer.parameter_names(index), strict=True)
    )
    return Layer(
        name=container,
        parameters=tuple(parameters),
        operations=tuple(operation for layer in layers for operation in layer.operations),
        boundary=sum(layer.boundary for layer in layers),
        reductions=sum(layer.reductions for layer in layers),
    )
