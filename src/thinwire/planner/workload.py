"""A workload: what a model is made of, and what one token costs it.

    root      parameters outside all layers: embeddings, the last norm, the head
    layers    runs of equal layers; FSDP2 gathers one layer at a time
    head      what is computed after the layers, with the root's parameters

A workload is made for one sequence length and one kind of attention, so that everything in it is a
plain number. Runs of equal layers are kept as one layer and a count: a model of 1e12 parameters is
as small here as one of 1e6.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from thinwire.errors import ConfigError
from thinwire.planner.operation import Operation

__all__ = ["DTYPE_BYTES", "Layer", "Parameter", "Workload"]

DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of a layer.

    Attributes:
        name: its name within the layer, such as ``"mlp.up.weight"``.
        shape: its global shape.
        split: the dimension that tensor parallelism divides; ``None``: every rank holds all of it.
        share: share of the tokens that use it; below 1 for the experts of a mixture.
    """

    name: str
    shape: tuple[int, ...]
    split: int | None = None
    share: float = 1.0

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def divided(self, parts: int) -> Parameter:
        """The largest part that one of ``parts`` tensor-parallel ranks holds."""
        if parts == 1 or self.split is None:
            return self
        shape = list(self.shape)
        shape[self.split] = -(-shape[self.split] // parts)
        return Parameter(name=self.name, shape=tuple(shape), split=self.split, share=self.share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A run of ``count`` equal layers, one after another.

    Attributes:
        name: the module's name, with ``{}`` where its index goes.
        start: index of the first one.
        count: how many there are.
        parameters: of one layer, in the order in which the module registers them.
        operations: of one layer's forward.
        boundary: elements per token that enter the layer: all that full recompute keeps.
        reductions: tensor-parallel all-reduces of ``boundary`` elements per token in forward;
            backward has as many.
        numel: elements of the parameters of one layer.
    """

    name: str
    start: int = 0
    count: int = 1
    parameters: tuple[Parameter, ...]
    operations: tuple[Operation, ...] = ()
    boundary: float = 0.0
    reductions: int = 0
    numel: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # asked for thousands of times in a plan, so added up once
        numel = sum(parameter.numel for parameter in self.parameters)
        object.__setattr__(self, "numel", numel)

    def parameter_names(self, index: int) -> Iterator[str]:
        """The full names of the parameters of the layer with this index."""
        prefix = self.name.format(index)
        for parameter in self.parameters:
            yield f"{prefix}.{parameter.name}" if prefix else parameter.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model at one sequence length.

    Attributes:
        name: what it is called in tables.
        tokens: tokens in one sequence; every layer sees as many.
        root: the parameters outside all layers, and what is computed before the layers.
        layers: runs of layers in the order of forward.
        head: what is computed after the layers.
        dtype: of the checkpoint: ``"fp32"``, ``"bf16"`` or ``"fp16"``.
        assumptions: what was decided in place of whoever named the model, in sentences.
    """

    name: str
    tokens: int
    root: Layer
    layers: tuple[Layer, ...]
    head: tuple[Operation, ...] = ()
    dtype: str = "fp32"
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ConfigError(f"sequence length {self.tokens}: must be at least 1")
        if self.dtype not in DTYPE_BYTES:
            raise ConfigError(
                f"model {self.name}: dtype {self.dtype!r} is not one of {', '.join(DTYPE_BYTES)}"
            )

    @property
    def num_layers(self) -> int:
        """Number of layers, the root not counted."""
        return sum(layer.count for layer in self.layers)

    @property
    def num_parameters(self) -> int:
        """Elements of all parameters; tied ones count once."""
        return self.root.numel + sum(layer.count * layer.numel for layer in self.layers)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The global shape of every parameter, by its full name; tied ones count once."""
        return {
            name: parameter.shape
            for layer in (self.root, *self.layers)
            for index in range(layer.start, layer.start + layer.count)
            for name, parameter in zip(layer.parameter_names(index), layer.parameters, strict=True)
        }

    @property
    def active_parameters(self) -> float:
        """Elements that one token uses: all of them, but its share of the experts."""
        return sum(
            layer.count * parameter.share * parameter.numel
            for layer in (self.root, *self.layers)
            for parameter in layer.parameters
        )

    @property
    def forward_flops(self) -> float:
        """FLOPs of forward for one sequence."""
        per_token = sum(operation.flops for operation in (*self.root.operations, *self.head))
        per_token += sum(
            layer.count * sum(operation.flops for operation in layer.operations)
            for layer in self.layers
        )
        return per_token * self.tokens
