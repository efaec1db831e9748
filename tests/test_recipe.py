"""Recipes: every contradiction is refused, and text, file and object mean the same."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from thinwire import recipes
from thinwire.errors import ConfigError
from thinwire.recipe import Recipe
from thinwire.recipes import format_recipe, parse_recipe, parse_recipes


@pytest.mark.parametrize("name", recipes.names())
def test_a_named_recipe_is_the_function_of_that_name(name: str) -> None:
    assert parse_recipe(name) == getattr(recipes, name)()
    assert parse_recipe(name).name == name


@pytest.mark.parametrize("name", recipes.names())
def test_a_file_written_from_a_recipe_reads_back_as_the_recipe(name: str, tmp_path: Path) -> None:
    recipe = dataclasses.replace(
        parse_recipe(name),
        seed=7,
        exact=("*norm*", 'odd "quoted" \\ name\n'),
        grads_for=(("*head*", "bf16"), ('a "b"\t= {c}', "int8/64+stochastic"), ("*", "int5/32")),
        warmup_steps=3,
    )
    path = tmp_path / "mine.toml"
    path.write_text(format_recipe(recipe))
    assert parse_recipe(str(path)) == recipe


def test_a_file_can_start_from_a_named_recipe(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('base = "qsdp"\ngrads = "int4/128"\n')
    assert parse_recipe(str(path)) == recipes.qsdp(grads="int4/128")
    assert parse_recipe(str(path)).name == "mine"


def test_overrides_follow_the_name() -> None:
    recipe = parse_recipe(
        "zeropp:grads=int8/128+stochastic:compute=fp32:replica=none:seed=5:exact=*norm*|head"
    )
    assert recipe == recipes.zeropp(
        grads="int8/128+stochastic",
        compute="fp32",
        replica=None,
        seed=5,
        exact=("*norm*", "head"),
    )


def test_none_and_nothing_are_no_pattern_of_what_stays_exact() -> None:
    for text in ("none", ""):
        assert parse_recipe(f"zeropp:exact={text}").exact == ()


def test_formats_of_single_parameters_follow_patterns(tmp_path: Path) -> None:
    text = parse_recipe("thin:grads_for=*embed*>int8/128|*HEAD*>topk=0.01:weights_for=*head*>bf16")
    made = recipes.thin(
        grads_for=(("*embed*", "int8/128"), ("*HEAD*", "topk=0.01")),
        weights_for=(("*head*", "bf16"),),
    )
    path = tmp_path / "mine.toml"
    path.write_text(
        'base = "thin"\n[grads_for]\n"*embed*" = "int8/128"\n"*HEAD*" = "topk=0.01"\n'
        '[weights_for]\n"*head*" = "bf16"\n'
    )
    assert text == made == parse_recipe(str(path))
    assert not made.is_uncompressed


def test_weights_that_travel_as_changes_may_be_sparse() -> None:
    # what is left out of a change comes with a later one, and no weight is zero for it
    assert parse_recipe("thin:weights=topk=0.1").weights == "topk=0.1"


def test_the_first_pattern_that_matches_decides() -> None:
    recipe = recipes.sdp4bit(grads_for=(("blocks.0.*", "int8/64"), ("*weight", "bf16")))
    within = recipe.grad_rule_within
    assert within is not None
    for name, across_hosts, within_host in [
        ("blocks.0.up.weight", "int8/64", "int8/64"),
        ("BLOCKS.1.up.weight", "bf16", "bf16"),
        ("embed", "int4/128+stochastic+hadamard", "int8/128+stochastic+hadamard"),
    ]:
        assert str(recipe.grad_rule.format_of(name)) == across_hosts
        assert str(within.format_of(name)) == within_host
    assert str(recipe.weight_rule.format_of("blocks.0.up.weight")) == "int4/2048"


def test_compute_decides_what_an_uncompressed_recipe_sends() -> None:
    recipe = parse_recipe("zero3:compute=fp32")
    assert (recipe.weights, recipe.grads) == ("fp32", "fp32")
    assert recipe.is_uncompressed


def test_a_list_keeps_its_order() -> None:
    names = [recipe.name for recipe in parse_recipes("zeropp, zero3:compute=fp32,qsdp")]
    assert names == ["zeropp", "zero3:compute=fp32", "qsdp"]


UNCOMPRESSED = ("ddp", "zero1", "zero2", "zero3", "hpz")


@pytest.mark.parametrize("name", recipes.names())
def test_only_the_baselines_are_uncompressed(name: str) -> None:
    assert parse_recipe(name).is_uncompressed == (name in UNCOMPRESSED)


@pytest.mark.parametrize(
    ("name", "shape", "exact"),
    [
        ("blocks.0.attention.weight", (512, 512), False),
        ("blocks.0.norm.weight", (2048, 2048), True),
        ("blocks.0.LayerNorm.weight", (2048, 2048), True),
        ("head.bias", (64, 64), True),
        ("scale", (4096,), True),
        ("tiny", (31, 33), True),
        ("small", (32, 32), False),
    ],
)
def test_exact_parameters(name: str, shape: tuple[int, ...], exact: bool) -> None:
    assert Recipe().travels_exactly(name, shape) == exact


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"stage": 4}, "stage"),
        ({"stage": -1}, "stage"),
        ({"stage": True}, "stage"),
        ({"weights": "int9"}, "weights"),
        ({"grads": "nonsense"}, "grads"),
        ({"grads": None}, "grads"),
        ({"grads_within": "int4/0"}, "grads_within"),
        ({"optimizer_states": "int4/-128"}, "optimizer_states"),
        ({"qat": "x"}, "qat"),
        ({"min_numel": -1}, "min_numel"),
        ({"min_numel": 1.5}, "min_numel"),
        ({"local_steps": 0}, "local_steps"),
        ({"local_steps": -3}, "local_steps"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"feedback": 1}, "feedback"),
        ({"adaptive_bits": 0, "grads": "int4/128"}, "adaptive_bits"),
        ({"adaptive_bits": float("nan"), "grads": "int4/128"}, "adaptive_bits"),
        ({"replica": "world"}, "replica"),
        ({"accumulate": "never"}, "accumulate"),
        ({"offload": "cloud"}, "offload"),
        ({"activations": "x"}, "activations"),
        ({"compute": "fp64"}, "compute"),
        ({"exact": "*norm*"}, "exact"),
        ({"exact": (1,)}, "exact"),
        ({"weights": "fp32", "compute": "bf16"}, "compute=bf16"),
        ({"stage": 2, "replica": "host"}, "replica=host"),
        ({"stage": 0, "replica": "rank/bf16"}, "replica=rank/bf16"),
        ({"stage": 0, "weights": "int8", "compute": "fp32"}, "weights=int8"),
        ({"weights": "topk=0.1"}, "replica=rank/bf16"),
        ({"weights": "int8", "weights_for": (("*head*", "topk=0.1"),)}, "replica=rank/bf16"),
        ({"replica": "rank"}, "rank/bf16"),
        ({"replica": "host/int9"}, "int9"),
        ({"replica": 3}, "replica"),
        ({"stage": 0, "grads_within": "int8"}, "stage=3"),
        ({"grads_for": [("*", "int8")]}, "grads_for"),
        ({"grads_for": (("*", 8),)}, "grads_for"),
        ({"grads_for": ("*", "int8")}, "grads_for"),
        ({"grads_for": (("*", "int9"),)}, "int9"),
        ({"grads_for": (("*", "int8"), ("*", "int4"))}, "twice"),
        ({"weights_for": (("1d", "int8"),)}, "*embed*"),
        ({"weights_for": (("*", "fp32"),)}, "compute=bf16"),
        ({"stage": 0, "compute": "fp32", "weights_for": (("*", "int8"),)}, "stage=3"),
        ({"stage": 0, "compute": "fp32", "hybrid": True}, "stage=2"),
        ({"stage": 1, "hybrid": True}, "stage=2"),
        ({"hybrid": True, "replica": "rank/bf16"}, "leave one of them out"),
        ({"stage": 1}, "accumulate=keep"),
        ({"stage": 1, "accumulate": "within"}, "stage=2"),
        ({"hybrid": 1}, "hybrid"),
        ({"warmup_steps": -1}, "warmup_steps"),
        ({"staleness": 2}, "staleness"),
        ({"staleness": -1}, "staleness"),
        ({"residual": "bf16"}, "feedback=true"),
        ({"residual_average": 0.8}, "feedback=true"),
        ({"residual_reset": 10}, "feedback=true"),
        ({"feedback": True, "residual": "int4/128"}, "int8/128"),
        ({"feedback": True, "residual": "int8/128+stochastic"}, "int8/128"),
        ({"feedback": True, "residual": "fp16"}, "int8/128"),
        ({"feedback": True, "residual_average": 1.0}, "residual_average"),
        ({"feedback": True, "residual_average": -0.1}, "residual_average"),
        ({"feedback": True, "residual_average": float("nan")}, "residual_average"),
        ({"feedback": True, "residual_reset": -1}, "residual_reset"),
        ({"feedback": True, "residual_reset": 1}, "use 2 or more"),
        ({"adaptive_every": 10}, "adaptive_bits=4.5"),
        ({"adaptive_bits": 8.26, "grads": "int4/128"}, "use at most 8.25"),
        ({"adaptive_bits": 8.5, "grads": "log4/64+bf16scale"}, "use at most 8.25"),
        ({"adaptive_bits": 10.1, "grads": "int4/32+asym"}, "use at most 10"),
        ({"adaptive_bits": 8, "grads": "int2/128+levels"}, "use at most 7.25"),
        ({"adaptive_bits": 32, "grads": "int8/8"}, "use at most 12"),
        ({"adaptive_bits": 4.5, "adaptive_every": 0}, "adaptive_every"),
        ({"adaptive_bits": 4.5, "grads": "topk=0.1"}, "grads=topk=0.1"),
        ({"adaptive_error": 0.0, "grads": "int4/128"}, "adaptive_error"),
        ({"adaptive_error": 1, "grads": "int4/128"}, "adaptive_error"),
        ({"adaptive_error": 0.1, "grads": "bf16"}, "grads=bf16"),
        ({"adaptive_error": 0.1, "adaptive_bits": 5, "grads": "int4"}, "leave one of them out"),
    ],
)
def test_an_impossible_field_is_named(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match="recipe field") as caught:
        Recipe(**fields)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("zero4", "zeropp"),
        ("", "zeropp"),
        ("zeropp:grads", "field=value"),
        ("zeropp:grad=int4", "grads"),
        ("zeropp:grads=int4:grads=int8", "gives grads twice"),
        ("zeropp:seed=1: seed = 1", "gives seed twice"),
        ("zeropp:seed=many", "whole number"),
        ("zeropp:feedback=maybe", "true, false"),
        ("zeropp:adaptive_bits=x", "a number"),
        ("zeropp:residual_average=x", "a number"),
        ("zeropp:grads_for=int8/128", "pattern>format"),
        ("absent.toml", "absent.toml"),
    ],
)
def test_a_text_that_names_no_recipe_is_told_what_would(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_recipe(text)
    assert told in str(caught.value)


@pytest.mark.parametrize("text", ["", " , ", "zero3,zero3", "zero3,,thin", "zero3,"])
def test_a_list_that_is_empty_or_repeats_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_recipes(text)


@pytest.mark.parametrize(
    "content", [b"not toml", b"\xff\xfe", b'base = "zero9"', b"base = 3", b"grad = 1", b"stage = 9"]
)
def test_a_bad_file_is_named_in_the_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"bad\.toml"):
        parse_recipe(str(path))


@pytest.mark.parametrize("content", [b"", b"# only a comment\n"])
def test_a_file_that_says_nothing_is_no_recipe(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "empty.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="says nothing"):
        parse_recipe(str(path))


def test_stage_1_means_that_gradients_are_kept() -> None:
    for text in ("zero1", "thin:stage=1", "zero1:accumulate=keep"):
        assert parse_recipe(text).accumulate == "keep"
    with pytest.raises(ConfigError, match="accumulate=keep"):
        parse_recipe("zero1:accumulate=sync")


@pytest.mark.parametrize(
    ("grads", "most"), [("int4/128", 8.25), ("int4/32+asym", 10), ("log4", 8.25)]
)
def test_adaptive_bits_may_be_all_that_the_widest_format_takes(grads: str, most: float) -> None:
    assert Recipe(grads=grads, adaptive_bits=most).adapts
