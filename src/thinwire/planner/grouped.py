"""Small layers that travel together, as ``thinwire.shard`` wraps them: each group is one layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from thinwire.grouping import consecutive_groups
from thinwire.planner.workload import DTYPE_BYTES, Layer
from thinwire.recipe import Recipe

__all__ = ["grouped_layers"]


def grouped_layers(layers: Iterable[Layer], recipe: Recipe) -> Iterator[Layer]:
    """The layers of a model as the recipe's ``grouped_bytes`` has them travel.

    Args:
        layers: runs of equal layers, in the order of forward.
        recipe: decides how many bytes travel together.
    """
    limit_bytes, element_bytes = recipe.grouped_bytes, DTYPE_BYTES[recipe.compute]
    container: list[Layer] = []  # its small layers so far, one by one
    for run in layers:
        is_large = element_bytes * run.numel > limit_bytes
        if is_large or (container and run.name != container[0].name):
            yield from _grouped(container, limit_bytes, element_bytes)
            container = []
        if is_large:
            yield run
        else:
            indices = range(run.start, run.start + run.count)
            container += [replace(run, start=index, count=1) for index in indices]
    yield from _grouped(container, limit_bytes, element_bytes)


def _grouped(layers: list[Layer], limit_bytes: int, element_bytes: int) -> Iterator[Layer]:
    sizes_bytes = [element_bytes * layer.numel for layer in layers]
    for indices in consecutive_groups(sizes_bytes, limit_bytes):
        yield _joined([layers[index] for index in indices])


def _joined(layers: list[Layer]) -> Layer:
    """One layer that does what several do, one after another."""
    if len(layers) == 1:
        return layers[0]
    container = layers[0].name.partition("{}")[0].rstrip(".")
    parameters = (
        replace(parameter, name=name.removeprefix(f"{container}."))
        for layer in layers
        for parameter, name in zip(
            layer.parameters, layer.parameter_names(layer.start), strict=True
        )
    )
    return Layer(
        name=container,
        parameters=tuple(parameters),
        operations=tuple(operation for layer in layers for operation in layer.operations),
        boundary=sum(layer.boundary for layer in layers),
        reductions=sum(layer.reductions for layer in layers),
    )
