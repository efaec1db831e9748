"""A setting: everything a prediction depends on besides the recipe."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from thinwire.errors import ConfigError
from thinwire.planner.group import Group, Parallelism
from thinwire.planner.hardware import Cluster
from thinwire.planner.timeline import Overlap
from thinwire.planner.value_form import check_at_most
from thinwire.planner.workload import Layer, Workload
from thinwire.recipe import Recipe

__all__ = ["Setting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A workload on a cluster.

    Attributes:
        workload: the model at its sequence length.
        cluster: the machines.
        micro_batch: sequences per data-parallel rank at once.
        accumulate: micro-batches per optimizer step.
        parallelism: tensor and pipeline parallelism, as given.
        selective: whether the core of attention is recomputed where the recipe keeps activations.
        overlap: what runs beside compute; ``None``: what the device and the recipe allow.
        compute_scale: how many times as fast layers run as the device's numbers say; 1 unless it
            was fitted.

    Raises:
        ConfigError: a number below 1 or above 1e9, or a world that does not divide.
    """

    workload: Workload
    cluster: Cluster
    micro_batch: int = 1
    accumulate: int = 1
    parallelism: Parallelism = field(default_factory=Parallelism)
    selective: bool = False
    overlap: Overlap | None = None
    compute_scale: float = 1.0

    def __post_init__(self) -> None:
        for name in ("micro_batch", "accumulate"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} = {getattr(self, name)}: at least 1 is needed")
            check_at_most(name, getattr(self, name))
        self.parallelism.data_group(self.cluster)
        if self.parallelism.pp > max(1, self.workload.num_layers):
            raise ConfigError(
                f"pp = {self.parallelism.pp} pipeline stages, but the model has only "
                f"{self.workload.num_layers} layers; use pp = {self.workload.num_layers} or less"
            )

    @property
    def group(self) -> Group:
        """The data-parallel ranks."""
        return self.parallelism.data_group(self.cluster)

    def sharing(self, recipe: Recipe) -> Group:
        """The ranks that share a layer's parameters: all, or under ``hybrid`` those of a host."""
        return self.group.within if recipe.hybrid else self.group

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch."""
        return self.micro_batch * self.workload.tokens

    @property
    def in_flight(self) -> float:
        """Micro-batches whose activations the first pipeline stage keeps at once."""
        return min(self.accumulate, self.parallelism.in_flight)

    def lanes(self, recipe: Recipe) -> Overlap:
        """What runs beside compute under a recipe.

        On accelerators FSDP2's and DDP's own streams, though a replica's deltas are sent before
        forward. On CPUs the reductions of DDP, and what goes through the sending thread: deltas,
        and the compressed reductions of a step's only micro-batch, or of all of them together.
        """
        if self.overlap is not None:
            return self.overlap
        is_resident = recipe.resident_format is not None
        if self.cluster.device.overlaps:
            return Overlap(gather=not is_resident, reduce=True)
        if recipe.is_uncompressed or recipe.stage == 0:
            return Overlap(gather=False, reduce=recipe.stage == 0)
        reduces_once = self.accumulate == 1 or recipe.accumulate == "keep"
        return Overlap(gather=False, reduce=reduces_once, ahead=is_resident)

    def root(self) -> Layer:
        """The root as one tensor-parallel rank holds it."""
        return self._divided(self.workload.root)

    def layers(self) -> tuple[Layer, ...]:
        """The layers of the fullest pipeline stage, as one tensor-parallel rank holds them."""
        runs = []
        for layer in self.workload.layers:
            runs.append(replace(self._divided(layer), count=-(-layer.count // self.parallelism.pp)))
        return tuple(runs)

    def _divided(self, layer: Layer) -> Layer:
        if self.parallelism.tp == 1:
            return layer
        parameters = tuple(p.divided(self.parallelism.tp) for p in layer.parameters)
        return replace(layer, parameters=parameters)
