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

from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["ROUNDING", "Lane", "LayerTimes", "MicroBatchTimeline", "Overlap", "simulate"]

WIRES = ("wire", "inner wire")
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
        reduce_start_s: of that, what does not depend on bytes; stage 0 alone, for buckets.
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
    reduce_start_s: float = 0.0


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


@dataclass(frozen=True, slots=True)
class _Turn:
    """One layer in one direction.

    Attributes:
        label: for pictures.
        count: equal layers in a row.
        work_s: compute.
        gather_s: by wire, before it.
        reduce_s: by wire, after it; the inner one comes first.
        ahead: whether its gather may be requested when the direction begins.
    """

    label: str
    count: int
    work_s: float
    gather_s: dict[str, float]
    reduce_s: dict[str, float]
    ahead: bool


@dataclass(slots=True)
class _Clock:
    """The lanes, and what was done on them.

    Attributes:
        overlap: what runs beside compute.
        compute_s: when the compute lane is free.
        ready_s: when the next layer's parameters are there.
        wires_s: when each wire is free.
        late_s: reductions kept for the end.
        lanes: for pictures.
    """

    overlap: Overlap
    compute_s: float = 0.0
    ready_s: float = 0.0
    wires_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(WIRES, 0.0))
    late_s: float = 0.0
    lanes: list[Lane] = field(default_factory=list)

    def walk(self, turns: Sequence[_Turn], *, drawn: bool) -> None:
        """Go through one direction of a micro-batch."""
        self._request(turns[0], self.compute_s)
        for turn, following in zip(turns, [*turns[1:], None], strict=True):
            self._repeat(turn, turn.count - 1, drawn=drawn)
            self._take(turn, following)

    def finish(self) -> float:
        """Send what was kept, and wait for all lanes."""
        end_s = max(self.compute_s, *self.wires_s.values())
        if self.late_s:
            end_s = self._send("wire", end_s, self.late_s, "reduce")
        return end_s

    def _take(self, turn: _Turn, following: _Turn | None) -> None:
        """Compute one layer; request the next one's gather before this one's reduction."""
        start_s = max(self.compute_s, self.ready_s)
        if following is not None and self.overlap.gather:
            self._request(following, start_s)
        self.compute_s = start_s + turn.work_s
        self.lanes.append(Lane("compute", turn.label, start_s, self.compute_s))
        self._reduce(turn)
        if following is not None and not self.overlap.gather:
            self._request(following, self.compute_s)

    def _request(self, turn: _Turn, at_s: float) -> None:
        """Put a gather on the wires; its layer may start when all of it is there."""
        earliest_s = 0.0 if turn.ahead and self.overlap.ahead else at_s
        self.ready_s = max(
            (
                self._send(wire, earliest_s, duration_s, f"{turn.label} gather")
                for wire, duration_s in turn.gather_s.items()
                if duration_s
            ),
            default=at_s,
        )

    def _reduce(self, turn: _Turn) -> None:
        """Put a reduction on the inner wire and then on the other, or keep it for the end."""
        if not self.overlap.reduce:
            self.late_s += sum(turn.reduce_s.values())
            return
        earliest_s = self.compute_s
        for wire, duration_s in turn.reduce_s.items():
            if duration_s:
                earliest_s = self._send(wire, earliest_s, duration_s, f"{turn.label} reduce")

    def _send(self, wire: str, earliest_s: float, duration_s: float, label: str) -> float:
        """Occupy a wire; returns when it is done."""
        start_s = max(earliest_s, self.wires_s[wire])
        self.wires_s[wire] = start_s + duration_s
        self.lanes.append(Lane(wire, label, start_s, start_s + duration_s))
        return start_s + duration_s

    def _repeat(self, turn: _Turn, times: int, *, drawn: bool) -> None:
        """Take a layer that is followed by an equal one; once that is periodic, jump ahead."""
        for index in range(times):
            before_s, late_s = self._reading(), self.late_s
            self._take(turn, turn)
            moved_s = [now - then for now, then in zip(self._reading(), before_s, strict=True)]
            # a lane that one layer leaves alone is left alone by all equal ones
            busy_s = [step_s for step_s in moved_s if step_s]
            if drawn or (busy_s and max(busy_s) - min(busy_s) > ROUNDING * max(busy_s)):
                continue
            left = times - 1 - index
            compute_s, ready_s, *wires_s = moved_s
            self.compute_s += left * compute_s
            self.ready_s += left * ready_s
            for wire, step_s in zip(WIRES, wires_s, strict=True):
                self.wires_s[wire] += left * step_s
            self.late_s += left * (self.late_s - late_s)
            return

    def _reading(self) -> tuple[float, ...]:
        return self.compute_s, self.ready_s, *self.wires_s.values()


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
    clock.walk([_forward(layer) for layer in (root, *runs, head)], drawn=drawn)
    forward_s = clock.compute_s
    clock.walk([_backward(layer) for layer in (head, *reversed(runs), root)], drawn=drawn)
    return MicroBatchTimeline(clock.finish(), forward_s, tuple(clock.lanes))


def _forward(layer: LayerTimes) -> _Turn:
    gather_s = {"wire": layer.gather_forward_s}
    return _Turn(layer.label, layer.count, layer.forward_s, gather_s, {}, ahead=True)


def _backward(layer: LayerTimes) -> _Turn:
    return _Turn(
        label=f"{layer.label} backward",
        count=layer.count,
        work_s=layer.backward_s,
        gather_s={"inner wire": layer.inner_gather_backward_s, "wire": layer.gather_backward_s},
        reduce_s={"inner wire": layer.inner_reduce_s, "wire": layer.reduce_s},
        ahead=False,
    )
