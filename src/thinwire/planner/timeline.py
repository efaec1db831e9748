"""One micro-batch as a timeline: what waits for what, on the compute lane and on the wire lane.

    forward      wire     [g0][g1]   [g2]   ...
                 compute      [f0   ][f1   ][f2   ] ...
    backward     wire     [g2]       [g1][r2]    [g0][r1]       [r0]
                 compute      [b2       ][b1       ][b0       ]

Where communication has a stream of its own, a layer's gather starts when the layer before it
starts to compute (FSDP2's prefetch), and its reduction when its backward is done. A sending thread,
as compression has on CPUs, takes reductions, and the deltas of all layers at once when forward
starts. What has neither waits. The wire carries one collective at a time, in the order of request.

Note: runs. Nothing here depends on absolute time. So once a layer moves both lanes by the same
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

    Attributes:
        label: for pictures.
        count: layers in the run.
        forward_s: compute of forward, blocking tensor-parallel messages included.
        backward_s: compute of backward.
        gather_forward_s: wire and codec before forward; 0: none.
        gather_backward_s: wire and codec before backward; 0: none.
        reduce_s: wire and codec after backward; 0: none.
    """

    label: str
    count: int = 1
    forward_s: float
    backward_s: float
    gather_forward_s: float = 0.0
    gather_backward_s: float = 0.0
    reduce_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Lane:
    """One stretch of work in a picture.

    Attributes:
        lane: ``"compute"`` or ``"wire"``.
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
        end_s: when both lanes are done.
        forward_s: when forward is done.
        lanes: the stretches, for a picture; of every layer if it was ``drawn``.
    """

    end_s: float
    forward_s: float
    lanes: tuple[Lane, ...]


@dataclass(slots=True)
class _Clock:
    """Both lanes, and what was done on them."""

    overlap: Overlap
    compute_s: float = 0.0
    wire_s: float = 0.0
    issue_s: float = 0.0
    late_reduce_s: float = 0.0
    lanes: list[Lane] = field(default_factory=list)

    def gather(self, duration_s: float, label: str, *, is_forward: bool) -> float:
        """Put a gather on the wire; returns when its layer may start."""
        if not duration_s:
            return self.compute_s
        earliest_s = self.issue_s if self.overlap.gather else self.compute_s
        if self.overlap.ahead and is_forward:
            earliest_s = 0.0
        return max(self.compute_s, self._send(earliest_s, duration_s, label))

    def compute(self, start_s: float, duration_s: float, label: str) -> None:
        self.issue_s = start_s
        self.compute_s = start_s + duration_s
        self.lanes.append(Lane("compute", label, start_s, self.compute_s))

    def reduce(self, duration_s: float, label: str) -> None:
        """Put a reduction on the wire, or keep it for the end."""
        if self.overlap.reduce:
            if duration_s:
                self._send(self.compute_s, duration_s, label)
        else:
            self.late_reduce_s += duration_s

    def finish(self) -> float:
        """Send what was kept, and wait for both lanes."""
        end_s = max(self.compute_s, self.wire_s)
        if self.late_reduce_s:
            end_s = self._send(end_s, self.late_reduce_s, "reduce")
        return end_s

    def _send(self, earliest_s: float, duration_s: float, label: str) -> float:
        start_s = max(earliest_s, self.wire_s)
        self.wire_s = start_s + duration_s
        self.lanes.append(Lane("wire", label, start_s, self.wire_s))
        return self.wire_s

    def layers(self, count: int, *, drawn: bool) -> Iterator[int]:
        """Count through a run of equal layers; once it is periodic, jump to its end."""
        for index in range(count):
            before_s, late_s = (self.compute_s, self.wire_s, self.issue_s), self.late_reduce_s
            yield index
            after_s = (self.compute_s, self.wire_s, self.issue_s)
            moved_s = [now - then for now, then in zip(after_s, before_s, strict=True)]
            if drawn or max(moved_s) - min(moved_s) > ROUNDING * moved_s[0]:
                continue
            left = count - 1 - index
            self.compute_s += left * moved_s[0]
            self.wire_s += left * moved_s[0]
            self.issue_s += left * moved_s[0]
            self.late_reduce_s += left * (self.late_reduce_s - late_s)
            return


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
    start_s = clock.gather(root.gather_forward_s, "root gather", is_forward=True)
    clock.compute(start_s, root.forward_s, "root")
    for run in runs:
        for _ in clock.layers(run.count, drawn=drawn):
            start_s = clock.gather(run.gather_forward_s, f"{run.label} gather", is_forward=True)
            clock.compute(start_s, run.forward_s, run.label)
    clock.compute(clock.compute_s, head.forward_s, "head")
    forward_s = clock.compute_s
    clock.compute(clock.compute_s, head.backward_s, "head backward")
    for run in reversed(runs):
        for _ in clock.layers(run.count, drawn=drawn):
            start_s = clock.gather(run.gather_backward_s, f"{run.label} gather", is_forward=False)
            clock.compute(start_s, run.backward_s, f"{run.label} backward")
            clock.reduce(run.reduce_s, f"{run.label} reduce")
    start_s = clock.gather(root.gather_backward_s, "root gather", is_forward=False)
    clock.compute(start_s, root.backward_s, "root backward")
    clock.reduce(root.reduce_s, "root reduce")
    return MicroBatchTimeline(clock.finish(), forward_s, tuple(clock.lanes))
