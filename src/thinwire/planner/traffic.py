"""Which collectives a recipe runs, layer by layer and micro-batch by micro-batch.

    stage 0      all-reduce of gradients                          2P a reduction
    stage 1      gather before the first forward, reduce-scatter  2P a step
    stage 2      gather before forward, reduce-scatter            2P a micro-batch
    stage 3      gather before forward and before backward, reduce-scatter      3P a micro-batch
    hpZ          as stage 3, but the second gather stays within the host
    replica      one delta a step, both gathers of stage 3 served from memory, or by the host
    hybrid       gathers and reduce-scatter within the host, all-reduce of a share across hosts

(arXiv 1910.02054, section 7, and 2306.10209; each times (W-1)/W.) A micro-batch that is not the
last one reduces too under ``accumulate=sync``, within the host under ``within``, whose last one
takes two hops, and not at all under ``keep``. With local steps every rank trains on its own, and
all are averaged once in ``local_steps`` (DiLoCo, arXiv 2311.08105).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from thinwire.errors import ConfigError
from thinwire.planner.call import Call
from thinwire.planner.group import Group
from thinwire.planner.grouped import grouped_layers, tells_layers_apart
from thinwire.planner.layer_calls import LayerCalls
from thinwire.planner.setting import Setting
from thinwire.planner.workload import Layer
from thinwire.quoting import shortened
from thinwire.recipe import Recipe

__all__ = ["LayerTraffic", "MicroBatch", "RecipeTraffic", "micro_batches", "recipe_traffic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTraffic:
    """The calls of one layer of a run, by when they happen; none where a tuple is empty.

    Attributes:
        layer: as one tensor-parallel rank holds it.
        slot_numel: elements of a rank's share of its parameters, padding included.
        forward: gathers before its forward.
        backward: gathers before its backward.
        reduce: reduction of its gradients.
        partial: reduction within the host only, of a micro-batch that is not the last.
        outer: average of what the ranks learned, once in ``local_steps`` steps.
        serve: gathers within the host from a replica split over it, at every read.
        served_elements: parameters copied from a replica, at every read.
        reads: of a replica in a micro-batch: before forward, and before backward.
    """

    layer: Layer
    slot_numel: int
    forward: tuple[Call, ...] = ()
    backward: tuple[Call, ...] = ()
    reduce: tuple[Call, ...] = ()
    partial: tuple[Call, ...] = ()
    outer: tuple[Call, ...] = ()
    serve: tuple[Call, ...] = ()
    served_elements: float = 0.0
    reads: int = 0

    @property
    def gathers_in_forward(self) -> bool:
        """Whether FSDP2 gathers it before forward, over the wire or from a replica."""
        return bool(self.forward)

    @property
    def gathers_in_backward(self) -> bool:
        """Whether FSDP2 gathers it before backward, over the wire or from a replica."""
        return bool(self.backward) or self.reads > 1


@dataclass(frozen=True, slots=True)
class RecipeTraffic:
    """The traffic of a whole model; it does not depend on the speed of anything.

    Attributes:
        root: of the root.
        layers: of the runs of layers, in the order of forward.
        agreement: before every forward, on which layers of a replica need an update.
    """

    root: LayerTraffic
    layers: tuple[LayerTraffic, ...]
    agreement: tuple[Call, ...] = ()

    def __iter__(self) -> Iterator[LayerTraffic]:
        yield self.root
        yield from self.layers


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What one kind of micro-batch communicates, and how many of a step are of this kind.

    Attributes:
        count: how many.
        reads: whether FSDP2 asks for parameters before forward, as they are not whole still.
        gathers: whether that is sent for; not where a replica serves it and is up to date.
        reduction: ``"full"``, ``"partial"`` or ``"none"``.
    """

    count: int
    reads: bool
    gathers: bool
    reduction: str


def micro_batches(recipe: Recipe, accumulate: int) -> tuple[MicroBatch, ...]:
    """The kinds of micro-batches of a step, in order.

    Args:
        recipe: its stage and ``accumulate`` decide.
        accumulate: micro-batches per optimizer step.
    """
    if accumulate == 1:
        return (MicroBatch(1, reads=True, gathers=True, reduction="full"),)
    early = {"sync": "full", "within": "partial", "keep": "none"}[recipe.accumulate]
    # parameters that stay whole while gradients do are gathered once a step
    reads = recipe.stage == 3 or recipe.accumulate != "keep"
    gathers = reads and recipe.resident_format is None
    kinds = (
        MicroBatch(1, reads=True, gathers=True, reduction=early),
        MicroBatch(accumulate - 2, reads=reads, gathers=gathers, reduction=early),
        MicroBatch(1, reads=reads, gathers=gathers, reduction="full"),
    )
    return tuple(kind for kind in kinds if kind.count)


def recipe_traffic(setting: Setting, recipe: Recipe, rank: int | None = None) -> RecipeTraffic:
    """The calls of every layer.

    Args:
        setting: workload and cluster.
        recipe: what travels in which format.
        rank: whose bytes, within the data-parallel group; by default the last one's.

    Raises:
        ConfigError: local steps of a sharded model.
    """
    if recipe.local_steps > 1 and recipe.stage > 0:
        raise ConfigError(
            f"recipe {shortened(recipe.name, 120)}: local_steps={recipe.local_steps} lets every "
            f"rank train a whole model on its own, and stage={recipe.stage} shards the model; use "
            "stage=0, or leave local_steps at 1"
        )
    rank = setting.group.size - 1 if rank is None else rank
    group, passes = setting.group, setting.cluster.backend.reduce_scatter_passes
    sharing = setting.sharing(recipe)

    def traffic(layer: Layer, *, is_root: bool = False) -> LayerTraffic:
        calls = LayerCalls(layer, recipe, sharing, rank % sharing.size, passes)
        sharded = _layer_traffic(calls, recipe, sharing, is_root=is_root)
        if not (recipe.hybrid and group.is_across and layer.numel):
            return sharded
        average = calls.of_slot(group.across, rank // sharing.size).all_reduce()
        return replace(sharded, reduce=(*sharded.reduce, *average))

    travelling: Iterable[Layer] = setting.layers()
    if setting.parallelism.tp == setting.parallelism.pp == 1:
        # whoever wraps a model for other kinds of parallelism groups by himself
        travelling = grouped_layers(travelling, recipe)
    layers = tuple(traffic(run) for layer in travelling for run in _alike(layer, recipe))
    agreement: tuple[Call, ...] = ()
    if recipe.resident_format is not None and group.size > 1:
        root_calls = LayerCalls(setting.root(), recipe, group, rank, passes)
        agreement = (root_calls.agreement(1 + sum(item.layer.count for item in layers)),)
    return RecipeTraffic(traffic(setting.root(), is_root=True), layers, agreement)


def _alike(layer: Layer, recipe: Recipe) -> Iterator[Layer]:
    """A run, cut where a pattern on names tells one of its layers from the next."""
    if layer.count == 1 or not tells_layers_apart(recipe):
        yield layer
        return
    rules = (recipe.weight_rule, recipe.grad_rule)
    start, stop = layer.start, layer.start + layer.count
    shapes = [parameter.shape for parameter in layer.parameters]

    def signature(index: int) -> list[tuple[object, ...]]:
        return [
            (recipe.travels_exactly(name, shape), *(rule.format_of(name) for rule in rules))
            for name, shape in zip(layer.parameter_names(index), shapes, strict=True)
        ]

    first, current = start, signature(start)
    for index in range(start + 1, stop):
        following = signature(index)
        if following != current:
            yield replace(layer, start=first, count=index - first)
            first, current = index, following
    yield replace(layer, start=first, count=stop - first)


def _layer_traffic(
    calls: LayerCalls, recipe: Recipe, group: Group, *, is_root: bool
) -> LayerTraffic:
    """The calls of one layer; FSDP2 keeps the root's parameters from forward to backward."""
    layer = calls.layer
    silent = LayerTraffic(layer=layer, slot_numel=calls.slot_numel)
    if group.size == 1 or not layer.numel:
        return silent
    if recipe.local_steps > 1:
        return replace(silent, outer=calls.all_reduce())
    if recipe.stage == 0:
        return replace(silent, reduce=calls.all_reduce())
    partial: tuple[Call, ...] = ()
    if recipe.accumulate == "within" and group.per_host > 1:
        # among the ranks of one host that is all there is to reduce
        is_whole = recipe.hybrid or not group.is_across
        partial = calls.reduce_scatter() if is_whole else calls.reduce_within()
    silent = replace(silent, reduce=calls.reduce_scatter(), partial=partial)
    gather = (calls.gather(),)
    if recipe.resident_format is not None:
        is_split = (recipe.replica or "").startswith("host") and group.per_host > 1
        serve = (calls.read_split_replica(),) if is_split else ()
        served = 0.0 if is_split else float(layer.numel)
        return replace(
            silent,
            forward=calls.delta(),
            serve=serve,
            served_elements=served,
            reads=1 if is_root or recipe.stage < 3 else 2,
        )
    backward: tuple[Call, ...] = ()
    if recipe.stage == 3 and recipe.replica is None and not is_root:
        backward = gather
    elif recipe.replica == "host" and group.per_host > 1:
        # on a single host the smaller group is the whole one, and gathers as in forward
        backward = (calls.gather_within(),) if group.is_across else gather
    return replace(silent, forward=gather, backward=backward)
