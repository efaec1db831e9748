"""Plans: the choice, its reasons, the document, and what happens when nothing fits."""

from __future__ import annotations

import dataclasses
import time

import pytest

from planner_settings import accelerators, lab_setting
from thinwire.errors import ConfigError
from thinwire.planner.candidates import drift_rank, grid, named_recipes, sends_fewer_bits
from thinwire.planner.explain import sensitivities
from thinwire.planner.prediction import predict, step_s
from thinwire.planner.ranking import make_plan
from thinwire.planner.request import ClusterRequest, PlanRequest
from thinwire.planner.traffic import micro_batches, recipe_traffic
from thinwire.recipes import parse_recipe, parse_recipes

DEVICE_TERMS = {"parameters", "gradients", "optimizer_states", "activations", "buffers"}
DEVICE_TERMS |= {"replica", "residual", "total"}


def test_the_document_has_the_keys_that_others_rely_on() -> None:
    setting = accelerators()
    document = make_plan(setting, named_recipes(setting)).to_json()
    assert set(document) == {
        "choice",
        "reasons",
        "break_even_bit_per_s",
        "break_even_margin",
        "recipes",
    }
    assert document["choice"] == document["recipes"][0]["name"]
    for recipe in document["recipes"]:
        assert set(recipe["device_bytes"]) >= DEVICE_TERMS
        assert "total" in recipe["host_bytes"]
        parts = ("compute_s", "exposed_comm_s", "codec_s", "offload_s", "bubble_s")
        assert recipe["step_s"] == pytest.approx(sum(recipe[part] for part in parts), rel=1e-9)
        assert min(recipe[part] for part in parts) >= 0
        assert isinstance(recipe["across_bytes"], int)


def test_the_fastest_that_fits_is_chosen() -> None:
    setting = accelerators()
    plan = make_plan(setting, named_recipes(setting))
    assert plan.choice is not None
    fastest = min(prediction.step_s for prediction in plan.predictions if prediction.fit.fits)
    # within 1 % of the fastest, what loses least is preferred
    assert plan.choice.step_s <= 1.01 * fastest


def test_recipes_as_fast_as_each_other_are_ranked_by_what_they_lose() -> None:
    """Where all waits are hidden, nothing is gained by losing bits."""
    setting = lab_setting("gpt:2x64x2", hosts=1, ranks=1, tokens=64)
    plan = make_plan(setting, parse_recipes("qsdp,zeropp,zero3"))
    assert plan.choice is not None
    assert plan.choice.recipe.name == "zero3"
    assert drift_rank(parse_recipe("zero3")) == 0 < drift_rank(parse_recipe("qsdp"))
    lossier = ("qsdp", "zeropp", "ddp:grads=sign/128", "ddp:grads=topk=0.01")
    ranks = [drift_rank(parse_recipe(text)) for text in lossier]
    assert ranks == sorted(ranks)


def test_pipeline_stages_send_and_nobody_says_otherwise() -> None:
    """Activations between stages cross hosts: bytes of every pass, whoever shares parameters."""
    cluster = ClusterRequest(hosts=4, ranks=2, device="a100-80gb", link="1gbit")
    request = PlanRequest(
        model="gpt:8x1024x16", cluster=cluster, tp=2, pp=4, accumulate=8, seq=1024
    )
    setting = request.setting()
    plan = make_plan(setting, [parse_recipe("zero3"), parse_recipe("thin")])
    handed_on = 2 * 8 * 1024 * 1024 * 2 / 2  # there and back, micro-batches, tokens, bf16, tp
    assert not setting.group.is_across
    for prediction in plan.predictions:
        assert prediction.sent.across_bytes == handed_on
    assert not any("nothing crosses the link" in reason for reason in plan.reasons)
    assert any("only what pipeline stages hand on" in reason for reason in plan.reasons)


def test_what_is_too_large_is_told_briefly_and_padding_too() -> None:
    cluster = ClusterRequest(hosts=4, ranks=8, device="a100-80gb", link="10gbit")
    setting = PlanRequest(model="llama-2-70b", cluster=cluster).setting()
    plan = make_plan(setting, list(grid(setting)), limit=10)
    (sentence,) = (reason for reason in plan.reasons if "Too large" in reason)
    assert sentence.count(" on the device") + sentence.count(" on the host") == 3
    assert sentence.endswith(" more.")
    many = ClusterRequest(hosts=512, ranks=8, device="a100-80gb", link="10gbit")
    wide = PlanRequest(model="gpt:2x64x2", cluster=many).setting()
    reasons = make_plan(wide, parse_recipes("zero3,ddp")).reasons
    assert any("Padding makes" in reason and "(zero3)" in reason for reason in reasons)


def test_help_that_does_not_fit_is_none() -> None:
    cluster = ClusterRequest(hosts=2, ranks=4, device="a100-40gb", link="10gbit")
    setting = PlanRequest(model="llama-2-13b", cluster=cluster).setting()
    prediction = predict(setting, parse_recipe("zero3"))
    assert prediction.fit.fits
    twice = dataclasses.replace(setting, micro_batch=2)
    assert not predict(twice, parse_recipe("zero3")).fit.fits
    assert "twice the micro-batch, per sequence" not in sensitivities(setting, prediction)
    most = dataclasses.replace(setting, accumulate=10**9)  # and twice that is no setting
    assert "twice the accumulation, per sequence" not in sensitivities(most, prediction)


def test_a_checkpoint_of_half_the_bits_is_said_to_be_trained_whole() -> None:
    for dtype, said in (("fp32", 0), ("bf16", 1), ("fp16", 1)):
        setting = accelerators(bit_per_s=1e9)
        setting = dataclasses.replace(
            setting, workload=dataclasses.replace(setting.workload, dtype=dtype)
        )
        reasons = make_plan(setting, [parse_recipe("zero3")]).reasons
        assert sum(f"parameters are {dtype}" in reason for reason in reasons) == said


def test_late_and_rare_is_not_compressed() -> None:
    """Fewer or later exchanges of whole numbers are no compression, and stray from plain steps."""
    for text in ("ddp:staleness=1", "ddp:local_steps=8", "zero3", "hpz"):
        assert not sends_fewer_bits(parse_recipe(text)), text
    for text in ("zeropp", "thin", "ddp:grads=bf16", "zeropp:staleness=1"):
        assert sends_fewer_bits(parse_recipe(text)), text
    for text in ("zeropp", "ddp"):
        plain, stale = parse_recipe(text), parse_recipe(f"{text}:staleness=1")
        assert (
            drift_rank(stale) > drift_rank(parse_recipe("thin")) > drift_rank(parse_recipe("ddp"))
        )
        assert drift_rank(stale) > drift_rank(plain)


def test_a_plan_takes_no_longer_than_its_recipes() -> None:
    """The break-even looks at few recipes: a plan costs less than twice its predictions."""
    for setting in (accelerators(), accelerators("gpt:100x128x8", hosts=4, ranks=1)):
        recipes = list(grid(setting))
        started = time.process_time()
        for recipe in recipes:
            predict(setting, recipe)
        predicted = time.process_time()
        make_plan(setting, recipes, limit=10)
        # 1.4 times on an idle core
        assert time.process_time() - predicted < 2 * (predicted - started)


def test_deep_narrow_models_cost_no_more() -> None:
    """Groups of equal layers are one run, however many: 0.4 s on an idle core, once 1.4."""
    cluster = ClusterRequest(hosts=4, link="1gbit")
    setting = PlanRequest(model="gpt:400x128x8", cluster=cluster).setting()
    started = time.process_time()
    make_plan(setting, named_recipes(setting))
    # three times what it takes is allowed for a busy core
    assert time.process_time() - started < 1.2


def test_when_nothing_fits_the_cheapest_change_is_named() -> None:
    cluster = ClusterRequest(hosts=4, ranks=8, device="a100-40gb", link="100gbit")
    setting = PlanRequest(model="13B", micro_batch=4, cluster=cluster).setting()
    plan = make_plan(setting, parse_recipes("zero3,qsdp"))
    assert plan.choice is None
    assert plan.cheapest is not None
    assert plan.cheapest.fit.fits
    (first, *_) = plan.reasons
    assert "Nothing fits: the smallest" in first
    assert "GB on the device, most of it" in first
    assert f"The cheapest change that fits is {plan.cheapest.recipe.name}" in first
    # it is a recipe that can be typed
    assert parse_recipe(plan.cheapest.recipe.name) == plan.cheapest.recipe


def test_a_model_beyond_all_means_says_what_to_change() -> None:
    cluster = ClusterRequest(hosts=1, ranks=1, device="l4")
    setting = PlanRequest(model="70B", cluster=cluster).setting()
    plan = make_plan(setting, parse_recipes("zero3"))
    assert plan.cheapest is None
    assert "Use more ranks, or a smaller model" in plan.reasons[0]


def test_host_memory_is_checked_when_it_is_known() -> None:
    cluster = ClusterRequest(
        hosts=1, ranks=8, device="a100-80gb", host_memory="64GB", link="100gbit"
    )
    setting = PlanRequest(model="13B", cluster=cluster).setting()
    prediction = predict(setting, parse_recipe("zero3:offload=states"))
    missing = prediction.fit.host_missing_bytes
    assert missing is not None
    assert missing > 0
    assert not prediction.fit.fits
    unknown = dataclasses.replace(
        setting,
        cluster=dataclasses.replace(
            setting.cluster, host=dataclasses.replace(setting.cluster.host, memory_bytes=None)
        ),
    )
    assert predict(unknown, parse_recipe("zero3:offload=states")).fit.host_missing_bytes is None
    reasons = make_plan(unknown, parse_recipes("zero3")).reasons
    assert any("host's memory is unknown" in reason for reason in reasons)


def test_what_was_not_checked_is_not_said_to_fit() -> None:
    for device, memory, host_memory, verdict in (
        ("cpu", None, None, None),
        ("cpu", None, "64GB", True),
        ("cpu", None, "1MB", False),
        ("a100-40gb", None, None, True),
    ):
        cluster = ClusterRequest(
            hosts=2, device=device, link="1gbit", memory=memory, host_memory=host_memory
        )
        setting = PlanRequest(model="gpt:4x64x4", cluster=cluster).setting()
        (recipe,) = make_plan(setting, parse_recipes("zero3")).to_json()["recipes"]
        assert recipe["fits"] is verdict, (device, host_memory)


def test_a_short_list_is_still_about_all_recipes() -> None:
    """What is left out of the tables was compared, and the number of what is unnamed is said."""
    setting = accelerators()
    plan = make_plan(setting, parse_recipes("zeropp,zero3"), limit=1)
    assert not any("were compared" in reason for reason in plan.reasons)
    cluster = ClusterRequest(hosts=4, ranks=8, device="a100-40gb", link="100gbit")
    large = PlanRequest(model="7B", cluster=cluster).setting()
    reasons = make_plan(large, parse_recipes("ddp,ddp_topk,zero3:activations=recompute"), limit=1)
    assert any(reason.endswith("; and 1 more.") for reason in reasons.reasons)


def test_what_is_priced_at_a_bound_is_named() -> None:
    recipes = "zero3,zeropp:adaptive_bits=4.5,zeropp:warmup_steps=10"
    reasons = make_plan(accelerators(), parse_recipes(recipes)).reasons
    at_most, steady = (
        next(reason for reason in reasons if start in reason)
        for start in ("priced at the most", "Warm-up is not priced")
    )
    assert at_most.endswith(": zeropp:adaptive_bits=4.5.")
    assert steady.endswith(": zeropp:warmup_steps=10.")
    plain = make_plan(accelerators(), parse_recipes("zero3")).reasons
    assert not any("priced" in reason for reason in plain)


def test_cpu_ranks_share_their_hosts_memory() -> None:
    cluster = ClusterRequest(hosts=2, ranks=4, link="1gbit", host_memory="4GB")
    setting = PlanRequest(model="200M", seq=128, cluster=cluster).setting()
    prediction = predict(setting, parse_recipe("ddp"))
    needed = 4 * prediction.memory.device.total
    assert prediction.fit.host_missing_bytes == pytest.approx(needed - 4e9)


def test_accumulation_sends_once_where_it_can() -> None:
    one, many = accelerators(), accelerators(accumulate=8)
    for text, times in (
        ("zero2:accumulate=keep", 1),
        ("zero2", 8),
        ("zero3", 8),
        ("thin:accumulate=keep", 1),
    ):
        recipe = parse_recipe(text)
        ratio = predict(many, recipe).sent.across_bytes / predict(one, recipe).sent.across_bytes
        # what a replica's ranks agree on is sent with every forward, a few hundred bytes
        assert ratio == pytest.approx(times, rel=1e-4), text


def test_micro_batches_add_up() -> None:
    for text in ("zero3", "zero2:accumulate=keep", "hsdp:accumulate=within", "thin"):
        for accumulate in (1, 2, 3, 9):
            kinds = micro_batches(parse_recipe(text), accumulate)
            assert sum(kind.count for kind in kinds) == accumulate
            assert kinds[0].gathers
            assert kinds[-1].reduction == "full"


def test_local_steps_send_less_often() -> None:
    setting = accelerators(hosts=4, ranks=1)
    every = predict(setting, parse_recipe("ddp:local_steps=2")).sent.across_bytes
    rarely = predict(setting, parse_recipe("ddp:local_steps=20")).sent.across_bytes
    assert rarely == pytest.approx(every / 10, rel=1e-6)
    with pytest.raises(ConfigError, match="use stage=0, or leave local_steps at 1"):
        predict(setting, parse_recipe("zero2:local_steps=2"))


def test_patterns_may_tell_layers_apart() -> None:
    setting = accelerators("gpt:4x256x4")
    base = recipe_traffic(setting, parse_recipe("qsdp"))
    told = recipe_traffic(setting, parse_recipe("qsdp:exact=1d|*norm*|blocks.2.*"))
    assert [item.layer.count for item in base.layers] == [4]
    assert [item.layer.count for item in told.layers] == [2, 1, 1]
    sizes = [item.forward[0].sent.total_bytes for item in told.layers]
    assert sizes[0] == sizes[2] < sizes[1]


def test_offload_costs_time_and_hides_what_it_can() -> None:
    setting = accelerators(hosts=1, ranks=4)
    kept = predict(setting, parse_recipe("zero2"))
    moved = predict(setting, parse_recipe("zero2:offload=states"))
    assert moved.time.offload_s > 0
    assert moved.step_s > kept.step_s
    everything = predict(setting, parse_recipe("zero3:offload=all"))
    on_disk = predict(setting, parse_recipe("zero3:offload=disk"))
    assert on_disk.time.offload_s >= everything.time.offload_s


def test_sensitivities_point_the_right_way() -> None:
    setting = accelerators(bit_per_s=1e9)
    ratios = sensitivities(setting, predict(setting, parse_recipe("zero3")))
    # bound by the network: twice the rate saves nearly half, devices nearly nothing
    assert ratios["twice the bandwidth"] == pytest.approx(0.5, abs=0.05)
    assert ratios["devices twice as fast"] > 0.95


def test_a_thousand_recipes_take_a_second() -> None:
    """1 ms each on an idle core; three times that is allowed for a busy one."""
    setting = accelerators(accumulate=4)
    recipes = (list(grid(setting)) * 2)[:1000]
    assert len(recipes) == 1000
    started = time.process_time()
    for recipe in recipes:
        predict(setting, recipe)
    assert time.process_time() - started < 3


def test_a_trillion_parameters_on_ten_thousand_ranks() -> None:
    cluster = ClusterRequest(hosts=1250, ranks=8, device="h100-80gb", link="3200gbit")
    setting = PlanRequest(model="1T", cluster=cluster).setting()
    started = time.process_time()
    plan = make_plan(setting, named_recipes(setting))
    # well under a second when idle; three times that is allowed for a busy machine
    assert time.process_time() - started < 3
    assert len(plan.predictions) == len(named_recipes(setting))


def test_no_recipe_is_refused() -> None:
    with pytest.raises(ConfigError, match="no recipe to plan"):
        make_plan(accelerators(), [])


def test_a_device_without_bf16_gets_recipes_in_fp32() -> None:
    cluster = ClusterRequest(hosts=2, ranks=4, device="v100-32gb", link="10gbit")
    setting = PlanRequest(model="125M", seq=512, cluster=cluster).setting()
    assert {recipe.compute for recipe in named_recipes(setting)} == {"fp32"}
    assert make_plan(setting, named_recipes(setting)).choice is not None


def test_a_faster_link_never_slows_a_step() -> None:
    for text in ("ddp", "zero2", "zero3", "zeropp", "thin"):
        recipe = parse_recipe(text)
        times = [step_s(accelerators(bit_per_s=10.0**power), recipe) for power in range(8, 13)]
        assert times == sorted(times, reverse=True)
