"""Numbers that only a calibration gives: shares by collective, AdamW, Python's own seconds."""

from __future__ import annotations

import dataclasses

import pytest

from planner_settings import lab_setting
from thinwire.errors import ConfigError
from thinwire.planner.call import FactorWork
from thinwire.planner.cost import factor_s
from thinwire.planner.hardware import OVERHEADS
from thinwire.planner.hardware_file import load_backend, load_device
from thinwire.planner.models import parse_model
from thinwire.planner.prediction import predict, step_s
from thinwire.planner.setting import Setting
from thinwire.recipes import parse_recipe

SETTING = lab_setting("gpt:2x64x2", hosts=2, ranks=1, tokens=32)
KINDS = {
    "ddp": "replicated",
    "ddp:grads=int8/256": "hooked",
    "ddp:grads=int8/256:local_steps=1000": "replicated",
    "zero3": "stock",
    "qsdp:group_bytes=0": "compressed",
    "thin:group_bytes=0": "resident",
}


def with_device(**numbers: object) -> Setting:
    device = load_device("cpu", {**numbers, "source": "calibrated"})
    return dataclasses.replace(SETTING, cluster=dataclasses.replace(SETTING.cluster, device=device))


def overheads(seconds: float) -> dict[str, float]:
    """Once, twice and so on some seconds, by kind."""
    return {kind: (1 + index) * seconds for index, kind in enumerate(OVERHEADS)}


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_overheads_add_up(name: str, kind: str) -> None:
    recipe = parse_recipe(name)
    # so slow that nothing else counts, and nothing that is sent beside compute shows
    slower = with_device(step_s=overheads(1e4), unit_s=overheads(1e5), parameter_s=overheads(100.0))
    own = 1 + list(OVERHEADS).index(kind)
    # two layers and the root
    expected = own * (1e4 + 3 * 1e5 + 100.0 * SETTING.workload.num_parameters)
    assert step_s(slower, recipe) == pytest.approx(expected, rel=1e-4)
    # every second of the step still belongs to one part
    prediction = predict(slower, recipe)
    assert prediction.step_s == pytest.approx(step_s(slower, recipe))


def test_what_hooks_take_hides_behind_a_wire_that_works_beside_compute() -> None:
    # thin sends beside both passes, stock FSDP2 on CPUs beside none
    unit_s, layers = 1e-3, 9
    wire_bound, slower = (
        dataclasses.replace(
            setting,
            workload=parse_model("gpt:8x64x2", tokens=8),
            cluster=setting.cluster.with_link(1e6),
        )
        for setting in (SETTING, with_device(unit_s=dict.fromkeys(OVERHEADS, unit_s)))
    )
    grown = {
        name: step_s(slower, parse_recipe(name)) - step_s(wire_bound, parse_recipe(name))
        for name in ("zero3", "thin:group_bytes=0")
    }
    assert grown["zero3"] == pytest.approx(layers * unit_s)
    # what is left: the last layer of forward, whose delta comes last, and the first of backward,
    # before which nothing can be sent; half a layer each
    assert grown["thin:group_bytes=0"] == pytest.approx(unit_s, rel=0.01)


@pytest.mark.parametrize("value", [{"stock": 1.0}, {**overheads(1.0), "stock": -1.0}])
def test_overheads_that_cannot_be(value: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="unit_s"):
        with_device(unit_s=value)


def test_adam_has_a_rate_of_its_own() -> None:
    # slow enough that the update is all that counts
    slow = with_device(adam_parameters_per_s=1.0)
    share = SETTING.workload.num_parameters / 2
    # a few rows do not divide by two ranks; padding counts
    assert step_s(slow, parse_recipe("zero3")) == pytest.approx(share, rel=0.01)


def test_shares_replace_those_of_the_preset_where_they_are_known() -> None:
    shares = {"all_gather": [[1e3, 0.2], [1e6, 0.5]]}
    backend = load_backend("gloo", {"shares": shares, "source": "calibrated"})
    assert backend.share("all_gather", is_ring=True, message_bytes=1e6) == 0.5
    assert backend.share("all_gather", is_ring=True, message_bytes=0) == 0.2
    assert backend.share("all_reduce", is_ring=True, message_bytes=1e6) == backend.ring_share
    assert backend.share("all_gather", is_ring=False, message_bytes=1e6) == backend.rounds_share


def test_calls_replace_the_one_of_the_preset_where_they_are_known() -> None:
    calls = {"all_reduce": 2e-3, "rounds": 1e-4}
    backend = load_backend("gloo", {"calls_s": calls, "source": "calibrated"})
    assert backend.started_s("all_reduce", is_ring=True) == 2e-3
    assert backend.started_s("agreement", is_ring=True) == 2e-3  # which is one
    assert backend.started_s("all_gather", is_ring=True) == backend.call_s
    assert backend.started_s("all_gather", is_ring=False) == 1e-4
    for wrong in ({"foo": 1e-3}, {"rounds": -1.0}):
        with pytest.raises(ConfigError, match="calls_s"):
            load_backend("gloo", {"calls_s": wrong, "source": "calibrated"})


def test_more_factors_cost_more() -> None:
    """Products grow with the factors, Gram-Schmidt with their square."""
    seconds = [step_s(SETTING, parse_recipe(f"ddp:grads=lowrank={k}")) for k in (2, 8, 31)]
    assert seconds == sorted(seconds)
    device = load_device("cpu")
    few, many = (factor_s(FactorWork(512, 512, k), device) for k in (16, 64))
    # copies of the matrix, and what 16 and 64 factors take: between as much and 16 times as much
    assert 1 < many / few < 16


def test_a_share_above_the_link() -> None:
    with pytest.raises(ConfigError, match="share"):
        load_backend("gloo", {"shares": {"rounds": [[1e3, 1.5]]}, "source": "calibrated"})


def test_a_model_of_one_bucket_is_reduced_after_backward() -> None:
    recipe = parse_recipe("ddp")
    prediction = predict(SETTING, recipe)
    # nothing overlaps: compute and wire add up
    assert prediction.step_s == pytest.approx(
        prediction.time.compute_s + prediction.time.exposed_comm_s
    )
    assert prediction.time.exposed_comm_s > 0
