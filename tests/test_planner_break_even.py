"""At which bandwidths compression pays: right at every rate, and the same from every link."""

from __future__ import annotations

import dataclasses

import pytest

from planner_settings import accelerators, lab_setting
from thinwire.planner.break_even import SURE, TIE, PayingRates, best_step_s, price
from thinwire.planner.candidates import named_recipes, sends_fewer_bits
from thinwire.planner.hardware import OVERHEADS
from thinwire.planner.ranking import make_plan
from thinwire.planner.request import ClusterRequest, PlanRequest
from thinwire.planner.setting import Setting
from thinwire.recipes import parse_recipe, parse_recipes


@pytest.mark.parametrize(
    "setting",
    [accelerators(), accelerators(hosts=4, ranks=1), accelerators(hosts=2, ranks=8)],
    ids=["8x4", "4x1", "2x8"],
)
def test_the_winner_changes_at_the_break_even_bandwidth(setting: Setting) -> None:
    recipes = parse_recipes("zero2,zero3,hpz,zeropp,qsdp")
    plan = make_plan(setting, recipes)
    rate = plan.break_even_bit_per_s
    assert rate is not None
    compressed = price(setting, [r for r in recipes if not r.is_uncompressed])
    others = price(setting, [r for r in recipes if r.is_uncompressed])
    # 25 % to either side, as it is to be measured
    for factor, wins in ((0.75, True), (1.25, False)):
        at = factor * rate
        assert (best_step_s(setting, compressed, at) < best_step_s(setting, others, at)) == wins


@pytest.mark.parametrize("rate", ["100mbit", "80gbit", "95gbit", "400gbit", "3200gbit"])
@pytest.mark.parametrize("model", ["llama-2-7b", "gpt:12x768x12"])
def test_what_is_said_of_a_rate_holds_at_it(model: str, rate: str) -> None:
    """Every link of one cluster is told the same verdict on each rate, and its own is right."""
    cluster = ClusterRequest(hosts=8, ranks=8, device="h100-80gb", link=rate)
    setting = PlanRequest(model=model, cluster=cluster).setting()
    plan = make_plan(setting, named_recipes(setting))
    assert plan.paying is not None
    fitting = [item for item in plan.predictions if item.fit.fits]
    small = min(item.step_s for item in fitting if sends_fewer_bits(item.recipe))
    large = min(item.step_s for item in fitting if not sends_fewer_bits(item.recipe))
    if max(small, large) > (1 + TIE) * min(small, large):
        assert plan.paying.pays_at(setting.cluster.link.bit_per_s) == (small < large)
    crossings = plan.paying.crossings_bit_per_s
    assert list(crossings) == sorted(crossings)
    if crossings:
        assert plan.break_even_bit_per_s in crossings
        assert not any("at any bandwidth" in reason for reason in plan.reasons)
    else:
        assert plan.break_even_bit_per_s is None


@pytest.mark.parametrize(
    ("model", "hosts", "device"),
    [
        ("llama-2-7b", 4, "a100-80gb"),  # another recipe leads between 300 and 800 Gbit/s alone
        ("llama-2-7b", 2, "h100-80gb"),
        ("gpt:12x768x12", 8, "h100-80gb"),
        ("gpt:24x2048x16", 4, "v100-32gb"),
    ],
)
def test_a_verdict_holds_at_every_rate(model: str, hosts: int, device: str) -> None:
    """Wherever the best of both sides differ, all recipes priced: between the planner's own too."""
    compute = "fp32" if device.startswith("v100") else None
    named = None
    verdicts = []
    for link in ("1gbit", "522gbit"):
        cluster = ClusterRequest(hosts=hosts, ranks=8, device=device, link=link)
        setting = PlanRequest(model=model, cluster=cluster).setting()
        recipes = [
            recipe if compute is None else dataclasses.replace(recipe, compute=compute)
            for recipe in named_recipes(setting)
        ]
        plan = make_plan(setting, recipes)
        assert plan.paying is not None
        fitting = [item.recipe for item in plan.predictions if item.fit.fits]
        small = price(setting, [recipe for recipe in fitting if sends_fewer_bits(recipe)])
        large = price(setting, [recipe for recipe in fitting if not sends_fewer_bits(recipe)])
        if named is None:
            named = [
                (rate, best_step_s(setting, large, rate) / best_step_s(setting, small, rate))
                for rate in (1e6 * 10 ** (step / 7) for step in range(8 * 7))
            ]
        for rate, gain in named:
            if max(gain, 1 / gain) > 1 + TIE:
                assert plan.paying.pays_at(rate) == (gain > 1), f"at {rate:g} bit/s"
        verdicts.append(plan.paying)
    assert verdicts[0] == verdicts[1]


def test_a_tie_is_no_break_even() -> None:
    """Two recipes that nobody can tell apart on a fast wire: what is left is said to be nothing."""
    cluster = ClusterRequest(hosts=4, ranks=8, device="a100-80gb", link="30tbit")
    setting = PlanRequest(model="llama-2-7b", cluster=cluster).setting()
    plan = make_plan(setting, named_recipes(setting))
    assert plan.paying is not None
    assert len(plan.paying.crossings_bit_per_s) == 1
    assert not any("1.00 times" in reason for reason in plan.reasons)


def test_intervals_are_where_it_pays() -> None:
    for pays_slowest in (True, False):
        paying = PayingRates(
            pays_slowest=pays_slowest,
            crossings_bit_per_s=(1e8, 1e9, 1e10),
            margins=(0.1, 0.01, 0.2),
        )
        for rate in (1e7, 5e8, 5e9, 1e12):
            inside = any(low < rate < high for low, high in paying.intervals())
            assert paying.pays_at(rate) == inside
        assert [paying.nearest(rate) for rate in (1e3, 2e8, 5e8, 1e15)] == [1e8, 1e8, 1e9, 1e10]


def test_a_break_even_that_is_not_sharp_is_said_to_be_none() -> None:
    """By a quarter of the wire's time the steps change; where that is little, nobody can tell."""
    setting = lab_setting("gpt:2x64x2", hosts=2, ranks=1, tokens=32)
    device = setting.cluster.device
    for fixed_s, is_sharp in ((0.0, True), (1.0, False)):
        # what each step takes besides, and a little more where traffic is compressed
        costs = {kind: fixed_s + 5e-3 * (kind == "compressed") for kind in OVERHEADS}
        slower = dataclasses.replace(device, step_s=costs)
        cluster = dataclasses.replace(setting.cluster, device=slower)
        plan = make_plan(
            dataclasses.replace(setting, cluster=cluster),
            [parse_recipe("zero3"), parse_recipe("qsdp")],
        )
        margin = plan.break_even_margin
        assert margin is not None
        assert (margin >= SURE) == is_sharp
        assert any("is not sharp" in reason for reason in plan.reasons) != is_sharp


def test_compression_that_loses_is_said_to_lose() -> None:
    setting = accelerators(bit_per_s=4.5e11)
    plan = make_plan(setting, parse_recipes("zero2,zeropp"))
    assert any("Compression loses" in reason for reason in plan.reasons)
    slow = make_plan(accelerators(bit_per_s=1e9), parse_recipes("zero2,zeropp"))
    assert any("Compression pays below" in reason for reason in slow.reasons)


def test_one_host_has_nothing_to_cross() -> None:
    setting = accelerators(hosts=1, ranks=4)
    plan = make_plan(setting, parse_recipes("zero3,qsdp"))
    assert plan.break_even_bit_per_s is None
    assert any("nothing crosses the link" in reason for reason in plan.reasons)
