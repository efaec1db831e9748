"""The moments of a step at which memory can be highest, and the highest of them.

With U the gathered parameters of one layer, A the flat buffer of the next gather, G the gradients
of a layer, R the flat buffer of its reduction, S the rank's share of them, P a call's payloads:

    forward, last layer    root U + A of the layer before + A, U and P of this one + activations
    loss                   root U + all activations + the gradient of the logits
    backward, layer i      U + R of the layer above + A of the layer below + S of those above, and
                           at its start the layer's activations and what works on them,
                           at its end G
    reduction, layer i     R + A of the layer below + S of those above, and first G, then S and P
    update                 all S

Where gradients are kept whole from micro-batch to micro-batch, K of a layer, the last micro-batch
counts: until its reduction a layer has K instead of G, and so have those below it.

These follow FSDP2 of torch 2.13, where the flat buffer of a gather lives until the next one is
copied out, and that of a reduction until the next reduction. Rank 0 holds the longest shards, so it
is the worst rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from thinwire.planner.activations import (
    ActivationPlan,
    LayerActivations,
    layer_activations,
    saved_bytes,
)
from thinwire.planner.layer_memory import LayerMemory, layer_memory
from thinwire.planner.memory import DeviceBytes, Memory
from thinwire.planner.setting import Setting
from thinwire.planner.states import held_states
from thinwire.planner.traffic import RecipeTraffic
from thinwire.planner.workload import DTYPE_BYTES
from thinwire.recipe import Recipe

__all__ = ["predict_memory"]

NO_ACTIVATIONS = LayerActivations(0.0, 0.0, 0.0, 0.0)
NO_ROOT = LayerMemory(
    count=1,
    gathered=0.0,
    flat_forward=0.0,
    flat_backward=0.0,
    gradients=0.0,
    kept_gradients=0.0,
    added_gradients=0.0,
    reduction=0.0,
    reduce_payloads=0.0,
    gather_payloads=0.0,
    share=0.0,
    secondary=0.0,
    activations=NO_ACTIVATIONS,
)


@dataclass(frozen=True, slots=True)
class _Moment:
    """Bytes that come and go, at one moment."""

    name: str
    activations: float
    buffers: float
    gradients: float
    secondary: float = 0.0

    @property
    def total(self) -> float:
        return self.activations + self.buffers + self.gradients + self.secondary


def predict_memory(setting: Setting, recipe: Recipe, traffic: RecipeTraffic) -> Memory:
    """The bytes that a recipe needs on the worst device and on a host."""
    plan = ActivationPlan(
        mode=_activation_mode(setting, recipe),
        tokens=setting.tokens,
        element_bytes=DTYPE_BYTES[recipe.compute],
        parallelism=setting.parallelism,
    )
    root = layer_memory(traffic.root, setting, recipe, NO_ACTIVATIONS)
    runs = tuple(
        layer_memory(item, setting, recipe, layer_activations(item.layer, plan))
        for item in traffic.layers
    )
    if not runs:  # a model without blocks is one unit, gathered as a whole
        root, runs = NO_ROOT, (root,)
    # DDP's gradients are whole anyway
    keeps = recipe.accumulate == "keep" and setting.accumulate > 1 and recipe.stage > 0
    stack = _Stack(
        root=root,
        runs=runs,
        stem=saved_bytes(setting.workload.root.operations, plan),
        logits=saved_bytes(setting.workload.head, plan),
        in_flight=setting.in_flight,
        stays_gathered=recipe.stage < 3
        or (recipe.replica == "host" and setting.group.per_host == 1),
        gathers_once=keeps and recipe.stage < 3,
        keeps_gradients=keeps,
        adds_gradients=setting.accumulate > 1 and not keeps,
        held_shares=_held_shares(setting, recipe),
    )
    worst = max(stack.moments(), key=lambda moment: moment.total)
    states = held_states(setting, recipe, traffic)
    tensors = DeviceBytes(
        parameters=states.parameters,
        optimizer_states=states.optimizer_states,
        replica=states.replica + worst.secondary,
        residual=states.residual,
        activations=worst.activations,
        buffers=worst.buffers + states.buckets,
        gradients=worst.gradients,
    )
    device = setting.cluster.device
    hosted = stack.total("hosted") * setting.in_flight
    return Memory(
        device=replace(
            tensors, allocator=device.slack * tensors.total, context=device.context_bytes
        ),
        host=replace(states.host, activations=hosted * setting.cluster.ranks_per_host),
        moment=worst.name,
    )


def _activation_mode(setting: Setting, recipe: Recipe) -> str:
    if recipe.activations == "keep" and setting.selective:
        return "selective"
    return recipe.activations


def _held_shares(setting: Setting, recipe: Recipe) -> int:
    """Shares of gradients that wait for the last micro-batch to cross hosts."""
    if setting.accumulate == 1 or recipe.accumulate != "within" or not setting.group.is_across:
        return 0
    # without hybrid a rank holds what the ranks of its place on all hosts will own
    return 1 if recipe.hybrid else setting.group.hosts


# what a layer adds to sums over all layers, or over those below one
TERMS: dict[str, Callable[[LayerMemory], float]] = {
    "gathered": lambda layer: layer.gathered,
    "share": lambda layer: layer.share,
    "kept gradients": lambda layer: layer.kept_gradients,
    "secondary": lambda layer: layer.secondary,
    "kept": lambda layer: layer.activations.kept,
    "hosted": lambda layer: layer.activations.hosted,
}


@dataclass(frozen=True, kw_only=True)
class _Stack:
    """A model's layers, and what stays where between them; without slots, to keep its sums.

    Attributes:
        root: memory of the root.
        runs: memory of the layers, in the order of forward.
        stem: activations kept by what comes before the layers.
        logits: activations kept by what comes after them.
        in_flight: micro-batches whose activations are kept at once, in a pipeline.
        stays_gathered: whether a layer's parameters stay whole from forward to backward.
        gathers_once: whether all of it stays whole from micro-batch to micro-batch.
        keeps_gradients: whether unreduced gradients stay from micro-batch to micro-batch.
        adds_gradients: whether reduced ones do.
        held_shares: of such as one rank owns, held beside them until the last micro-batch.
    """

    root: LayerMemory
    runs: Sequence[LayerMemory]
    stem: float
    logits: float
    in_flight: float
    stays_gathered: bool
    gathers_once: bool
    keeps_gradients: bool
    adds_gradients: bool
    held_shares: int

    @cached_property
    def _sums(self) -> dict[str, list[float]]:
        """Every term of all layers below each run, and of all."""
        return {
            name: list(accumulate((run.count * term(run) for run in self.runs), initial=0.0))
            for name, term in TERMS.items()
        }

    def total(self, term: str) -> float:
        """A term of all layers together."""
        return self._sums[term][-1]

    def moments(self) -> Iterator[_Moment]:
        """All moments that can be the worst."""
        yield self._forward()
        yield self._loss()
        for index, run in enumerate(self.runs):
            # the terms change linearly along a run between the layers whose neighbours are of
            # other runs, so one of the ends is the worst, with or without such a neighbour
            for position in {0, 1, run.count - 2, run.count - 1} & set(range(run.count)):
                yield from self._backward(index, position)
        yield _Moment("update", 0.0, 0.0, self._all_gradients())

    def _forward(self) -> _Moment:
        last = self.runs[-1]
        has_neighbour = last.count > 1 or len(self.runs) > 1
        buffers = self.root.gathered + last.flat_forward * (2 if has_neighbour else 1)
        buffers += self._gathered_below() if self.stays_gathered else last.gathered
        buffers += last.gather_payloads
        activations = self._kept() + self.stem + last.activations.passing
        secondary = self.total("secondary")
        # what is gathered once a step is gathered before there are gradients
        earlier = 0.0 if self.gathers_once else self._earlier()
        return _Moment("forward of the last layer", activations, buffers, earlier, secondary)

    def _loss(self) -> _Moment:
        buffers = self.root.gathered
        if self.stays_gathered:
            buffers += self._gathered_below()
        # the gradient of the logits is as large as what is kept of them
        activations = self._kept() + self.stem + 2 * self.logits
        secondary = self.total("secondary")
        return _Moment("loss", activations, buffers, self._earlier(), secondary)

    def _backward(self, index: int, position: int) -> Iterator[_Moment]:
        """The start of a layer's backward, its end, and both halves of its reduction."""
        run = self.runs[index]
        above = self._neighbour(index, position + 1)
        below = self._neighbour(index, position - 1)
        kept = self._kept_below(index, position) + self.stem
        buffers = self.root.gathered + self.root.gradients
        if self.stays_gathered:
            buffers += self._gathered_below(index, position)
        fetched = below.flat_backward if below else 0.0
        buffers += fetched
        fetching = below.gather_payloads if below and fetched else 0.0
        reduced = self._reduced_above(index, position)
        hosted = self._below("secondary", index, position)
        working = run.activations.kept + run.activations.working
        waiting = buffers + run.gathered + (above.reduction if above else 0.0)
        yield _Moment("start of a backward", kept + working, waiting + fetching, reduced, hosted)
        kept += run.activations.passing  # the gradient of the layer's input
        fresh = run.added_gradients if self.keeps_gradients else run.gradients
        yield _Moment("end of a backward", kept, waiting + fresh, reduced, hosted)
        buffers += run.reduction
        unreduced = 0.0 if self.keeps_gradients else run.gradients
        yield _Moment("before a reduction", kept, buffers + unreduced, reduced, hosted)
        reduced += 0.0 if self.adds_gradients else run.share
        reduced -= run.kept_gradients if self.keeps_gradients else 0.0
        buffers += run.reduce_payloads + (run.share if self.adds_gradients else 0.0)
        yield _Moment("reduction", kept, buffers, reduced, hosted)

    def _neighbour(self, index: int, position: int) -> LayerMemory | None:
        """The layer at a position of a run, or the next one beyond the run's end."""
        if position < 0:
            return self.runs[index - 1] if index > 0 else None
        if position >= self.runs[index].count:
            return self.runs[index + 1] if index + 1 < len(self.runs) else None
        return self.runs[index]

    def _below(self, term: str, index: int, position: int) -> float:
        """A term of all layers below a position of a run."""
        return self._sums[term][index] + position * TERMS[term](self.runs[index])

    def _gathered_below(self, index: int | None = None, position: int = 0) -> float:
        if index is None:
            return self.total("gathered")
        return self._below("gathered", index, position)

    def _kept(self) -> float:
        return self.in_flight * self.total("kept")

    def _kept_below(self, index: int, position: int) -> float:
        others = (self.in_flight - 1) * self.total("kept")
        return others + self._below("kept", index, position)

    def _all_gradients(self) -> float:
        return self.total("share") + self.root.share

    def _earlier(self) -> float:
        """Gradients of earlier micro-batches."""
        if self.keeps_gradients:
            return self.total("kept gradients") + self.root.kept_gradients
        if self.adds_gradients:
            return self._all_gradients() * (1 + self.held_shares)
        return 0.0

    def _reduced_above(self, index: int, position: int) -> float:
        """Reduced gradients once the layers above are done, and kept ones that are not reduced."""
        if self.adds_gradients:
            return self._earlier()
        through = self._below("share", index, position + 1)
        reduced = self.total("share") - through
        if self.keeps_gradients:
            reduced += self._below("kept gradients", index, position + 1)
            reduced += self.root.kept_gradients
        return reduced
