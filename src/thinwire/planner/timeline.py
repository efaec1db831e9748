"""One micro-batch as a timeline: what waits for what, on the compute lane and on the wires.

    forward      wire     [g0][g1]   [g2]   ...
                 compute      [f0   ][f1   ][f2   ] ...
    backward     wire     [g2]       [g1][r2]    [g0][r1]       [r0]
                 compute      [b2       ][b1       ][b0       ]

Where communication has a stream of its own, a layer's gather starts when the layer before it
starts to compute (FSDP2's prefetch), and its reduction when its backward is done. A sending thread,
as compression has on CPUs, takes reductions, and the deltas of all layers at once when forward
starts. What has neither waits. A wire carries one collective at a time, in the order of request;
that within a host and that across hosts are two.

Note: runs. Nothing here depends on absolute time. So once a layer moves all its lanes by the same
amount, every equal layer after it moves them by that amount again, and the rest of the run is one
multiplication. A model of 128 layers mostly costs as much as one of four.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

__all__ = ["Lane", "LayerTimes", "MicroBatchTimeline", "Overlap", "simulate"]

ROUNDING = 1e-9  # far above what float64 loses over thousands of additions, far below any term


@dataclass(frozen=True, slots=True)
class Overlap:
    """Which communication runs beside compute.

    Attributes:
        gather: gathers of the next layer.
        reduce: reductions of the layer before.
        ahead: gathers before forward are all requested when it starts.
    """

    gather: bool
    reduce: bool
    ahead: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """Seconds of one layer, for a run of ``count`` equal ones.

    What is said of a wire includes codecs. The inner wire is that within a host.

    Attributes:
        label: for pictures.
        count: layers in the run.
        forward_s: compute of forward, blocking tensor-parallel messages included.
        backward_s: compute of backward.
        gather_forward_s: wire before forward.
        gather_backward_s: wire before backward.
        inner_gather_backward_s: inner wire before backward.
        inner_reduce_s: inner wire after backward, before ``reduce_s``.
        reduce_s: wire after backward.
    """

    label: str
    count: int = 1
    forward_s: float
    backward_s: float
    gather_forward_s: float = 0.0
    gather_backward_s: float = 0.0
    inner_gather_backward_s: float = 0.0
    inner_reduce_s: float = 0.0
    reduce_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Lane:
    """One stretch of work in a picture.

    Attributes:
        lane: ``"compute"``, ``"wire"`` or ``"inner wire"``.
        label: what it is.
        start_s: from the start of the micro-batch.
        end_s: from the start of the micro-batch.
    """

    lane: str
    label: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class MicroBatchTimeline:
    """When a micro-batch ends, and what it did on the way.

    Attributes:
        end_s: when all lanes are done.
        forward_s: when forward is done.
        lanes: the stretches, for a picture; of every layer if it was ``drawn``.
    """

    end_s: float
    forward_s: float
    lanes: tuple[Lane, ...]


@dataclass(slots=True)
class _Clock:
    """The lanes, and what was done on them."""

    overlap: Overlap
    compute_s: float = 0.0
    issue_s: float = 0.0
    wires_s: dict[str, float] = field(default_factory=lambda: {"wire": 0.0, "inner wire": 0.0})
    late_reduce_s: float = 0.0
    lanes: list[Lane] = field(default_factory=list)

    def gather(self, duration_s: float, label: str, *, ahead: bool, wire: str = "wire") -> float:
        """Put a gather on a wire; returns when its layer may start."""
        if not duration_s:
            return self.compute_s
        earliest_s = self.issue_s if self.overlap.gather else self.compute_s
        if ahead and self.overlap.ahead:
            earliest_s = 0.0
        return max(self.compute_s, self.send(wire, earliest_s, duration_s, label))

    def compute(self, start_s: float, duration_s: float, label: str) -> None:
        """Compute on the compute lane."""
        self.issue_s = start_s
        self.compute_s = start_s + duration_s
        self.lanes.append(Lane("compute", label, start_s, self.compute_s))

    def reduce(self, inner_s: float, duration_s: float, label: str) -> None:
        """Put a reduction on the inner wire and then on the other, or keep it for the end."""
        if not self.overlap.reduce:
            self.late_reduce_s += inner_s + duration_s
            return
        earliest_s = self.compute_s
        if inner_s:
            earliest_s = self.send("inner wire", earliest_s, inner_s, label)
        if duration_s:
            self.send("wire", earliest_s, duration_s, label)

    def finish(self) -> float:
        """Send what was kept, and wait for all lanes."""
        end_s = max(self.compute_s, *self.wires_s.values())
        if self.late_reduce_s:
            end_s = self.send("wire", end_s, self.late_reduce_s, "reduce")
        return end_s

    def send(self, wire: str, earliest_s: float, duration_s: float, label: str) -> float:
        """Occupy a wire; returns when it is done."""
        start_s = max(earliest_s, self.wires_s[wire])
        self.wires_s[wire] = start_s + duration_s
        self.lanes.append(Lane(wire, label, start_s, start_s + duration_s))
        return start_s + duration_s

    def layers(self, count: int, *, drawn: bool) -> Iterator[int]:
        """Count through a run of equal layers; once it is periodic, jump to its end."""
        for index in range(count):
            before_s, late_s = self._reading(), self.late_reduce_s
            yield index
            moved_s = [now - then for now, then in zip(self._reading(), before_s, strict=True)]
            # a lane that one layer leaves alone is left alone by all equal ones
            busy_s = [step for step in moved_s if step]
            if drawn or max(busy_s) - min(busy_s) > ROUNDING * max(busy_s):
                continue
            left = count - 1 - index
            compute_s, issue_s, *wires_s = moved_s
            self.compute_s += left * compute_s
            self.issue_s += left * issue_s
            for wire, step_s in zip(self.wires_s, wires_s, strict=True):
                self.wires_s[wire] += left * step_s
            self.late_reduce_s += left * (self.late_reduce_s - late_s)
            return

    def _reading(self) -> tuple[float, ...]:
        return self.compute_s, self.issue_s, *self.wires_s.values()


def simulate(
    root: LayerTimes,
    runs: Sequence[LayerTimes],
    head: LayerTimes,
    overlap: Overlap,
    *,
    drawn: bool = False,
) -> MicroBatchTimeline:
    """The timeline of one micro-batch.

    Args:
        root: before the layers; its gather comes first, its reduction last.
        runs: the layers in the order of forward.
        head: after the layers; it has no parameters of its own.
        overlap: what runs beside compute.
        drawn: whether every layer is simulated, for a picture that shows them all.
    """
    clock = _Clock(overlap)
    _forward(clock, root)
    for run in runs:
        for _ in clock.layers(run.count, drawn=drawn):
            _forward(clock, run)
    clock.compute(clock.compute_s, head.forward_s, head.label)
    forward_s = clock.compute_s
    clock.compute(clock.compute_s, head.backward_s, f"{head.label} backward")
    for run in reversed(runs):
        for _ in clock.layers(run.count, drawn=drawn):
            _backward(clock, run)
    _backward(clock, root)
    return MicroBatchTimeline(clock.finish(), forward_s, tuple(clock.lanes))


def _forward(clock: _Clock, layer: LayerTimes) -> None:
    start_s = clock.gather(layer.gather_forward_s, f"{layer.label} gather", ahead=True)
    clock.compute(start_s, layer.forward_s, layer.label)


def _backward(clock: _Clock, layer: LayerTimes) -> None:
    label = f"{layer.label} gather"
    start_s = max(
        clock.gather(layer.gather_backward_s, label, ahead=False),
        clock.gather(layer.inner_gather_backward_s, label, ahead=False, wire="inner wire"),
    )
    clock.compute(start_s, layer.backward_s, f"{layer.label} backward")
    clock.reduce(layer.inner_reduce_s, layer.reduce_s, f"{layer.label} reduce")
