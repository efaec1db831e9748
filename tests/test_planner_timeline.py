"""The timeline: what waits for what, and that long runs may be cut short."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire.planner.timeline import LayerTimes, Overlap, simulate

NOTHING = LayerTimes(label="none", forward_s=0.0, backward_s=0.0)
SERIAL = Overlap(gather=False, reduce=False)
BESIDE = Overlap(gather=True, reduce=True)

seconds = st.sampled_from([0.0, 0.5, 1.0, 1.5, 4.0]) | st.floats(0.001, 10)


@st.composite
def layers(draw: st.DrawFn) -> LayerTimes:
    return LayerTimes(
        label="layer",
        count=draw(st.integers(1, 40)),
        forward_s=draw(st.floats(0.001, 10)),
        backward_s=draw(st.floats(0.001, 10)),
        gather_forward_s=draw(seconds),
        gather_backward_s=draw(seconds),
        inner_gather_backward_s=draw(seconds),
        inner_reduce_s=draw(seconds),
        reduce_s=draw(seconds),
    )


overlaps = st.builds(Overlap, gather=st.booleans(), reduce=st.booleans(), ahead=st.booleans())


def layer(count: int = 1, **times: float) -> LayerTimes:
    times = {"forward_s": 1.0, "backward_s": 2.0, **times}
    return LayerTimes(label="layer", count=count, **times)


@settings(max_examples=200, deadline=None)
@given(root=layers(), runs=st.lists(layers(), min_size=1, max_size=3), overlap=overlaps)
def test_a_run_cut_short_ends_when_the_whole_run_ends(
    root: LayerTimes, runs: list[LayerTimes], overlap: Overlap
) -> None:
    drawn = simulate(root, runs, NOTHING, overlap, drawn=True)
    cut = simulate(root, runs, NOTHING, overlap)
    # sums of up to a few hundred terms in another order: far below 1e-9
    assert abs(cut.end_s - drawn.end_s) <= 1e-9 * drawn.end_s
    assert abs(cut.forward_s - drawn.forward_s) <= 1e-9 * drawn.end_s


@settings(max_examples=100, deadline=None)
@given(runs=st.lists(layers(), min_size=1, max_size=3), overlap=overlaps)
def test_no_lane_is_busy_with_two_things(runs: list[LayerTimes], overlap: Overlap) -> None:
    timeline = simulate(NOTHING, runs, NOTHING, overlap, drawn=True)
    for lane in ("compute", "wire", "inner wire"):
        busy = [item for item in timeline.lanes if item.lane == lane]
        for before, after in itertools.pairwise(busy):
            assert after.start_s >= before.end_s - 1e-12
        assert all(item.end_s <= timeline.end_s + 1e-12 for item in busy)


@settings(max_examples=100, deadline=None)
@given(runs=st.lists(layers(), min_size=1, max_size=3))
def test_overlap_never_slows_and_never_beats_the_busiest_lane(runs: list[LayerTimes]) -> None:
    serial = simulate(NOTHING, runs, NOTHING, SERIAL).end_s
    beside = simulate(NOTHING, runs, NOTHING, BESIDE).end_s
    compute = sum(run.count * (run.forward_s + run.backward_s) for run in runs)
    wire = sum(
        run.count * (run.gather_forward_s + run.gather_backward_s + run.reduce_s) for run in runs
    )
    inner = sum(run.count * (run.inner_gather_backward_s + run.inner_reduce_s) for run in runs)
    assert max(compute, wire, inner) * (1 - 1e-9) <= beside <= serial * (1 + 1e-9)
    assert serial <= (compute + wire + inner) * (1 + 1e-9)


def test_without_overlap_everything_adds_up() -> None:
    run = layer(3, gather_forward_s=0.25, gather_backward_s=0.5, reduce_s=0.125)
    assert simulate(NOTHING, [run], NOTHING, SERIAL).end_s == 3 * (1 + 2 + 0.25 + 0.5 + 0.125)


def test_only_the_first_gather_and_the_last_reduction_show() -> None:
    """Compute 1 + 2 a layer hides gathers and reductions of 0.5 but at the ends, by hand."""
    run = layer(4, gather_forward_s=0.5, gather_backward_s=0.5, reduce_s=0.5)
    # the first layer's gather shows in forward, and the last layer's second gather as well: it is
    # requested when the head computes, which takes no time here
    assert simulate(NOTHING, [run], NOTHING, BESIDE).end_s == 0.5 + 4 + 0.5 + 8 + 0.5


def test_deltas_leave_ahead_of_their_layers() -> None:
    run = layer(4, gather_forward_s=2.0)
    late = simulate(NOTHING, [run], NOTHING, Overlap(gather=True, reduce=True))
    ahead = simulate(NOTHING, [run], NOTHING, Overlap(gather=False, reduce=True, ahead=True))
    # both are bound by the wire: 4 gathers of 2, then the last forward and all backwards
    assert late.end_s == ahead.end_s == 8 + 1 + 8
    fast = layer(4, gather_forward_s=0.5)
    # sent one after another from the start, all but the first are there in time
    assert (
        simulate(NOTHING, [fast], NOTHING, Overlap(gather=False, reduce=True, ahead=True)).forward_s
        == 0.5 + 4
    )
