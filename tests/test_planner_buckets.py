"""DDP's buckets as the planner sees them."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.nn.parallel import distributed

from planner_settings import lab_setting
from thinwire.planner.buckets import BUCKET_BYTES, FIRST_BUCKET_BYTES, in_buckets
from thinwire.planner.hardware_file import load_backend
from thinwire.planner.prediction import predict, predict_timeline, step_s
from thinwire.planner.timeline import LayerTimes
from thinwire.planner.workload import Layer, Parameter
from thinwire.recipes import parse_recipe

ROOT = LayerTimes(label="root", forward_s=0.0, backward_s=0.0, reduce_s=0.25)
MEBI = 1 << 20


def run(label: str, *numels: int, count: int = 1) -> tuple[LayerTimes, Layer]:
    """A run of layers; a second of backward each, and two on the wire."""
    parameters = tuple(
        Parameter(name=f"p{index}", shape=(numel,)) for index, numel in enumerate(numels)
    )
    times = LayerTimes(label=label, count=count, forward_s=0.5, backward_s=1.0, reduce_s=2.0)
    return times, Layer(name=label, count=count, parameters=parameters)


def test_limits_are_those_of_ddp() -> None:
    first = torch.distributed._DEFAULT_FIRST_BUCKET_BYTES  # type: ignore[attr-defined]
    assert first == FIRST_BUCKET_BYTES
    assert BUCKET_BYTES == distributed._DEFAULT_BUCKET_CAP_MB * MEBI


def test_a_small_model_is_reduced_when_backward_is_done() -> None:
    root, parts = in_buckets(ROOT, [run("h", 1000, 1000, count=3)], element_bytes=4)
    assert root.reduce_s == pytest.approx(0.25 + 3 * 2.0)
    assert sum(part.reduce_s for part in parts) == 0
    assert sum(part.backward_s for part in parts) == pytest.approx(3 * 1.0)


def test_a_layer_is_cut_where_the_first_bucket_is_full() -> None:
    # backward makes the second parameter's gradient first; it alone is over 1 MiB
    (_, parts) = in_buckets(ROOT, [run("h", MEBI, MEBI)], element_bytes=4)
    late, early = parts
    assert (early.backward_s, early.reduce_s) == (0.5, 1.0)
    assert (late.backward_s, late.reduce_s) == (0.5, 0.0)


def test_the_gradient_that_overfills_a_bucket_is_in_it() -> None:
    # the first bucket takes one layer of 4 MiB; seven more reach 28 of 25 MiB
    runs = [run("h", MEBI, count=10)]
    root, parts = in_buckets(ROOT, runs, element_bytes=4)
    assert [part.reduce_s for part in reversed(parts)] == [2.0, 0, 0, 0, 0, 0, 0, 14.0, 0, 0]
    assert root.reduce_s == pytest.approx(0.25 + 2 * 2.0)


def test_a_bucket_is_one_call() -> None:
    """Layers of ten MiB: the first fills a bucket, three fill each that follows."""
    times, layer = run("h", 10 * MEBI // 4, count=7)
    started = dataclasses.replace(times, reduce_start_s=0.5)
    root = dataclasses.replace(ROOT, reduce_start_s=0.125)
    root, parts = in_buckets(root, [(started, layer)], element_bytes=4)
    by_bucket = [part.reduce_s for part in reversed(parts) if part.reduce_s]
    assert by_bucket == [1.5 + 0.5, 3 * 1.5 + 0.5, 3 * 1.5 + 0.5]
    assert root.reduce_s == pytest.approx(0.25)


@pytest.mark.parametrize("text", ["ddp:grads=int4/128", "ddp:grads=int8/256", "ddp_powersgd"])
def test_late_buckets_take_no_longer_and_no_time_is_negative(text: str) -> None:
    """Of twelve layers of 50,000 parameters one or two buckets are made, and as many calls."""
    setting = lab_setting("gpt:12x64x2", hosts=2, ranks=1, tokens=32)
    backend = load_backend("gloo", {"call_s": 5e-3, "source": "given"})
    setting = dataclasses.replace(
        setting, cluster=dataclasses.replace(setting.cluster, backend=backend)
    )
    plain, late = parse_recipe(text), parse_recipe(f"{text}:staleness=1")
    assert step_s(setting, late) <= step_s(setting, plain)
    for recipe in (plain, late):
        for lane in predict_timeline(setting, recipe).lanes:
            assert lane.end_s >= lane.start_s, lane
        time = predict(setting, recipe).time
        assert min(time.exposed_comm_s, time.codec_s) >= 0


@pytest.mark.parametrize("numels", [(), (0,), (0, 0)])
def test_a_layer_without_parameters_still_computes(numels: tuple[int, ...]) -> None:
    root, parts = in_buckets(ROOT, [run("h", *numels), run("i", 1000)], element_bytes=4)
    assert sum(part.backward_s for part in parts) == pytest.approx(2 * 1.0)
    assert root.reduce_s == pytest.approx(0.25 + 2.0)


def test_layers_that_fill_buckets_alone_stay_a_run() -> None:
    runs = [run("h", BUCKET_BYTES, count=96)]
    root, parts = in_buckets(ROOT, runs, element_bytes=4)
    assert parts == [runs[0][0]]
    assert root == ROOT
