"""One optimizer step of one recipe, assembled from layers, calls and timelines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property

from thinwire.formats import parse_format
from thinwire.planner.activations import RECOMPUTED_MODES
from thinwire.planner.buckets import in_buckets
from thinwire.planner.call import Call, CodecWork, Sent
from thinwire.planner.compute import ComputeTime, operations_s, optimizer_s
from thinwire.planner.cost import (
    call_s,
    codec_s,
    stage_link_s,
    start_s,
    tensor_parallel_s,
    work_s,
)
from thinwire.planner.offload import offload_time
from thinwire.planner.operation import Operation
from thinwire.planner.overhead import Overhead
from thinwire.planner.setting import Setting
from thinwire.planner.states import held_states
from thinwire.planner.timeline import LayerTimes, MicroBatchTimeline, Overlap, simulate
from thinwire.planner.traffic import LayerTraffic, MicroBatch, RecipeTraffic, micro_batches
from thinwire.planner.workload import DTYPE_BYTES, Layer
from thinwire.recipe import Recipe

__all__ = ["Step"]

MOMENTS = 2  # AdamW's


class Step:
    """Seconds and bytes of one optimizer step.

    Args:
        setting: workload and cluster.
        recipe: what travels in which format.
        traffic: its calls, from :func:`thinwire.planner.traffic.recipe_traffic`.
    """

    def __init__(self, setting: Setting, recipe: Recipe, traffic: RecipeTraffic) -> None:
        self._setting = setting
        self._recipe = recipe
        self._cluster = setting.cluster
        self._device = setting.cluster.device
        self._micro_batches = micro_batches(recipe, setting.accumulate)
        self._traffic = traffic
        self._states = held_states(setting, recipe, traffic)
        self._offload = offload_time(setting, recipe, self._states)

    def sent(self) -> Sent:
        """Bytes that the rank that sends most hands to the backend, or to the next stage."""
        total = self._handed_on
        for times, call in self.calls():
            total += call.sent.times(times)
        return total

    def calls(self) -> Iterator[tuple[float, Call]]:
        """Every call of the step, and how often it is made."""
        gathering = sum(kind.count for kind in self._micro_batches if kind.gathers)
        reductions = {"full": 0, "partial": 0, "none": 0}
        for kind in self._micro_batches:
            reductions[kind.reduction] += kind.count
        for traffic in self._traffic:
            count = traffic.layer.count
            yield from _repeated(gathering * count, traffic.forward)
            yield from _repeated(self._setting.accumulate * count, traffic.backward)
            yield from _repeated(reductions["full"] * count, traffic.reduce)
            yield from _repeated(reductions["partial"] * count, traffic.partial)
            yield from _repeated(count / self._recipe.local_steps, traffic.outer)
            yield from _repeated(count * self._reads(traffic), traffic.serve)
        yield from _repeated(self._setting.accumulate, self._traffic.agreement)

    def wire_s(self) -> float:
        """Seconds of all messages, hidden or not."""
        seconds = sum(times * call_s(call, self._cluster) for times, call in self.calls())
        seconds -= sum(
            kind.count * self._shared_starts_s(kind)
            for kind in self._micro_batches
            if kind.reduction == "full"
        )
        blocking = sum(
            layer.count * (self._blocking_s(layer) + self._blocking_s(layer, backward=True))
            for layer in self._layers
        )
        return seconds + self._setting.accumulate * blocking + self._between_stages_s

    def codec_s(self) -> float:
        """Seconds of all codecs and copies between buffers, hidden or not."""
        seconds = sum(times * codec_s(call, self._device) for times, call in self.calls())
        served_s = sum(
            item.layer.count * self._reads(item) * item.served_elements for item in self._traffic
        )
        served_s /= self._device.copy_elements_per_s
        return seconds + served_s + self._states_codec_s

    def compute_s(self) -> float:
        """Seconds of arithmetic, the update included where the device does it."""
        times = [(1, self._stem_time), (1, self._head_time)]
        times += [(layer.count, self._layer_time(layer)) for layer in self._layers]
        once_s = sum(count * (time.forward_s + time.backward_s) for count, time in times)
        overhead = self._overhead
        once_s += sum(item.layer.count * overhead.layer_s(item.layer) for item in self._traffic)
        return self._setting.accumulate * once_s + self._update_s + overhead.after_s

    def offload_s(self) -> float:
        """Seconds that copies, the host's update and the disk add."""
        offload, overlap = self._offload, self._overlap
        last = self._timelines[-1]
        hidden_s = last.end_s - last.forward_s if overlap.reduce else 0.0
        seconds = max(0.0, offload.down_s - hidden_s) + offload.update_s + offload.up_s
        passes = 2 if self._recipe.stage == 3 else 1
        for kind, timeline in zip(self._micro_batches, self._timelines, strict=True):
            hidden_s = timeline.end_s if overlap.gather else 0.0
            seconds += kind.count * max(0.0, passes * offload.fetch_s - hidden_s)
        return seconds

    def bubble_s(self) -> float:
        """Seconds that a pipeline stage waits for the others: (pp - 1) / interleave micro-batches.

        (arXiv 2104.04473, section 2.2.)
        """
        parallelism = self._setting.parallelism
        return (parallelism.pp - 1) / parallelism.interleave * self._timelines[0].end_s

    def end_s(self) -> float:
        """Seconds of the whole step."""
        seconds = sum(
            kind.count * timeline.end_s
            for kind, timeline in zip(self._micro_batches, self._timelines, strict=True)
        )
        for traffic in self._traffic:
            outer_s = self._calls_s(traffic.outer) / self._recipe.local_steps
            seconds += traffic.layer.count * outer_s
        seconds += self._setting.accumulate * self._calls_s(self._traffic.agreement)
        seconds += self._update_s + self._states_codec_s + self._between_stages_s
        seconds += self._overhead.after_s
        seconds += self.offload_s() + self.bubble_s()
        # nothing waits for a late reduction, yet all that a step sends has to fit into its time
        return max(seconds, self.wire_s()) if self._recipe.staleness else seconds

    def drawn(self) -> MicroBatchTimeline:
        """The last micro-batch, every layer simulated."""
        return self._simulate(self._micro_batches[-1], drawn=True)

    @cached_property
    def _overlap(self) -> Overlap:
        return self._setting.lanes(self._recipe)

    @property
    def _layers(self) -> list[Layer]:
        return [item.layer for item in self._traffic.layers]

    @cached_property
    def _timelines(self) -> list[MicroBatchTimeline]:
        return [self._simulate(kind) for kind in self._micro_batches]

    def _simulate(self, kind: MicroBatch, *, drawn: bool = False) -> MicroBatchTimeline:
        head = self._head_time
        root, runs = self._parts(kind)
        if self._recipe.stage == 0:
            root, runs = self._bucketed(root, runs)
        if self._recipe.staleness:  # nobody waits for a reduction
            root, *runs = (
                replace(times, reduce_s=0.0, inner_reduce_s=0.0) for times in (root, *runs)
            )
        last = LayerTimes(label="head", forward_s=head.forward_s, backward_s=head.backward_s)
        return simulate(root, runs, last, self._overlap, drawn=drawn)

    def _parts(self, kind: MicroBatch) -> tuple[LayerTimes, list[LayerTimes]]:
        """The root and the runs of layers."""
        root = self._times("root", self._traffic.root, kind, self._stem_time)
        return root, [
            self._times(item.layer.name.format("i"), item, kind, self._layer_time(item.layer))
            for item in self._traffic.layers
        ]

    def _bucketed(
        self, root: LayerTimes, runs: list[LayerTimes]
    ) -> tuple[LayerTimes, list[LayerTimes]]:
        layers = list(zip(runs, self._layers, strict=True))
        return in_buckets(root, layers, element_bytes=DTYPE_BYTES[self._recipe.compute])

    def _shared_starts_s(self, kind: MicroBatch) -> float:
        """Seconds of starts that layers whose gradients share a bucket do not have."""
        if self._recipe.stage > 0:
            return 0.0
        parts = self._parts(kind)
        before, after = (
            sum(times.count * times.reduce_start_s for times in (root, *runs))
            for root, runs in (parts, self._bucketed(*parts))
        )
        return before - after

    def _times(
        self, label: str, traffic: LayerTraffic, kind: MicroBatch, time: ComputeTime
    ) -> LayerTimes:
        layer = traffic.layer
        calls = {"full": traffic.reduce, "partial": traffic.partial, "none": ()}[kind.reduction]
        gathers = traffic.forward if kind.gathers else ()
        ahead, late = self._overlap.ahead, self._recipe.staleness > 0
        beside = late or self._overlap.reduce
        starts_s = 0.0
        if self._recipe.stage == 0:
            starts_s = sum(start_s(call, self._cluster) for call in calls)
        backward_inner, backward_outer = self._split(traffic.backward)
        reduce_inner, reduce_outer = self._split(calls)
        read_s = self._read_s(traffic)
        pass_s = self._overhead.layer_s(layer) / 2
        forward_s = time.forward_s + pass_s + self._blocking_s(layer)
        forward_s += read_s if kind.reads else 0.0
        backward_s = time.backward_s + pass_s + self._blocking_s(layer, backward=True)
        if traffic.reads > 1:
            backward_s += read_s
        return LayerTimes(
            label=label,
            count=layer.count,
            forward_s=forward_s + self._on_compute_s(gathers, by_thread=ahead),
            backward_s=backward_s + self._on_compute_s(calls, by_thread=beside),
            gather_forward_s=self._on_wire_s(gathers, by_thread=ahead),
            gather_backward_s=self._calls_s(backward_outer),
            inner_gather_backward_s=self._calls_s(backward_inner),
            inner_reduce_s=self._calls_s(reduce_inner),
            reduce_s=self._on_wire_s(reduce_outer, by_thread=beside),
            reduce_start_s=starts_s,
        )

    def _split(self, calls: tuple[Call, ...]) -> tuple[tuple[Call, ...], tuple[Call, ...]]:
        """Calls within hosts and calls across, where streams let them pass each other."""
        if not (self._device.overlaps and self._setting.group.is_across):
            return (), calls
        inner = tuple(call for call in calls if not call.group.is_across)
        return inner, tuple(call for call in calls if call.group.is_across)

    def _on_wire_s(self, calls: Iterable[Call], *, by_thread: bool) -> float:
        """Seconds of calls on the wire, with their codecs unless a sending thread runs them."""
        if by_thread and not self._device.overlaps:
            return sum(call_s(call, self._cluster) for call in calls)
        return self._calls_s(calls)

    def _on_compute_s(self, calls: Iterable[Call], *, by_thread: bool) -> float:
        """Seconds of codecs that a sending thread takes from compute, whose core it shares."""
        if by_thread and not self._device.overlaps:
            return sum(codec_s(call, self._device) for call in calls)
        return 0.0

    def _calls_s(self, calls: Iterable[Call]) -> float:
        """Seconds of calls one after another, codecs included."""
        return sum(call_s(call, self._cluster) + codec_s(call, self._device) for call in calls)

    def _reads(self, traffic: LayerTraffic) -> int:
        """How often a step reads a layer's parameters out of a replica."""
        before_forward = sum(kind.count for kind in self._micro_batches if kind.reads)
        return before_forward + self._setting.accumulate * (traffic.reads - 1)

    def _read_s(self, traffic: LayerTraffic) -> float:
        """Seconds to read a layer's parameters out of a replica, once."""
        copied_s = traffic.served_elements / self._device.copy_elements_per_s
        return copied_s + self._calls_s(traffic.serve)

    def _blocking_s(self, layer: Layer, *, backward: bool = False) -> float:
        """Seconds of a layer's tensor-parallel messages, which compute waits for."""
        parallelism = self._setting.parallelism
        if parallelism.tp == 1:
            return 0.0
        size_bytes = self._setting.tokens * layer.boundary * DTYPE_BYTES[self._recipe.compute]
        times = layer.reductions
        if backward and self._recomputes:
            times *= 2
        return times * tensor_parallel_s(self._device, parallelism.tp, size_bytes)

    @property
    def _recomputes(self) -> bool:
        return self._recipe.activations in RECOMPUTED_MODES

    def _layer_time(self, layer: Layer) -> ComputeTime:
        recompute = "selective" if self._setting.selective else "none"
        return self._operations_s(layer.operations, "full" if self._recomputes else recompute)

    @cached_property
    def _stem_time(self) -> ComputeTime:
        return self._operations_s(self._setting.workload.root.operations, "none")

    @cached_property
    def _head_time(self) -> ComputeTime:
        return self._operations_s(self._setting.workload.head, "none")

    def _operations_s(self, operations: tuple[Operation, ...], recompute: str) -> ComputeTime:
        time = operations_s(
            operations,
            self._device,
            tokens=self._setting.tokens,
            dtype=self._recipe.compute,
            parallelism=self._setting.parallelism,
            recompute=recompute,
        )
        scale = self._setting.compute_scale
        return ComputeTime(time.forward_s / scale, time.backward_s / scale)

    @cached_property
    def _overhead(self) -> Overhead:
        return Overhead.of(self._recipe, self._device)

    @cached_property
    def _update_s(self) -> float:
        if self._recipe.offload != "none":
            return 0.0
        return optimizer_s(self._states.share_numel, self._device)

    @cached_property
    def _states_codec_s(self) -> float:
        """Seconds to decode and encode the optimizer states where they are kept in a format."""
        fmt = parse_format(self._recipe.optimizer_states)
        if fmt.name == "fp32" or self._recipe.offload != "none":
            return 0.0
        numel = MOMENTS * self._states.share_numel
        work = (CodecWork("decode", fmt, numel), CodecWork("encode", fmt, numel))
        return work_s(work, self._device)

    @cached_property
    def _between_stages_s(self) -> float:
        """Seconds of the activations and gradients that a pipeline stage hands on."""
        if self._setting.parallelism.pp == 1:
            return 0.0
        return self._hand_overs * stage_link_s(self._cluster, self._boundary_bytes)

    @property
    def _handed_on(self) -> Sent:
        """Activations and gradients that a rank of a middle stage hands on."""
        if self._setting.parallelism.pp == 1:
            return Sent()
        size_bytes = self._hand_overs * self._boundary_bytes
        is_across = self._cluster.hosts > 1
        return Sent(0, size_bytes) if is_across else Sent(size_bytes, 0)

    @property
    def _hand_overs(self) -> int:
        """How often a stage hands on in a step: activations forward, gradients back."""
        return 2 * self._setting.accumulate * self._setting.parallelism.interleave

    @property
    def _boundary_bytes(self) -> float:
        """What a rank hands on at once: its part, the receivers gather (arXiv 2104.04473, 4.1)."""
        size_bytes = self._setting.tokens * self._layers[-1].boundary
        return size_bytes * DTYPE_BYTES[self._recipe.compute] / self._setting.parallelism.tp


def _repeated(times: float, calls: Iterable[Call]) -> Iterator[tuple[float, Call]]:
    for call in calls:
        yield times, call
