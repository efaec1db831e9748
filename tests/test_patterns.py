"""A pattern of a recipe that decides nothing is refused, by name."""

from __future__ import annotations

import warnings

import pytest

import thinwire as tw
from planner_settings import lab_setting
from small_models import make_model
from thinwire.errors import ConfigError, FormatError
from thinwire.patterns import check_patterns, check_shapes
from thinwire.planner.ranking import make_plan
from thinwire.recipes import parse_recipe
from world import run_world

SHAPES = {
    "embed.weight": (65, 24),
    "blocks.0.up.weight": (37, 24),
    "blocks.0.norm.weight": (24,),
    "blocks.1.up.weight": (37, 24),
    "tiny.weight": (3, 4),
}
IDLE = {
    "*embd*>int8/64": r"'\*embd\*'.*matches none .*embed.weight, .* and 2 more",
    "*up*>int8/64|blocks.1.*>bf16": r"'blocks\.1\.\*' .*earlier patterns .*blocks\.1\.up\.weight",
    "*norm*>int8/64": r"'\*norm\*'.*exact and min_numel=800.*blocks\.0\.norm\.weight",
    "*tiny*>int8/64": r"'\*tiny\*'.*exact and min_numel=800.*tiny\.weight",
}


@pytest.mark.parametrize("field", ["weights_for", "grads_for"])
@pytest.mark.parametrize("rule", IDLE)
def test_a_pattern_that_decides_nothing_is_refused_and_named(field: str, rule: str) -> None:
    text = f"thin:min_numel=800:{field}={rule}"
    with pytest.raises(ConfigError, match=IDLE[rule]) as caught:
        check_patterns(parse_recipe(text), SHAPES)
    assert field in str(caught.value)
    with pytest.warns(UserWarning, match=IDLE[rule]):
        check_patterns(parse_recipe(f"{text}:strict=false"), SHAPES)


def test_a_pattern_of_what_stays_exact_is_not_misspelled_either() -> None:
    """But for those that ``exact`` has by default: a model may have no norms."""
    for exact, is_idle in (("*norm*|*bias|1d", False), ("*up*|*rms*", True), ("*EMBED*", False)):
        recipe = parse_recipe(f"thin:exact={exact}")
        if not is_idle:
            check_patterns(recipe, SHAPES)
            continue
        with pytest.raises(ConfigError, match=r"'\*rms\*' of exact matches none"):
            check_patterns(recipe, SHAPES)
        with pytest.warns(UserWarning, match="of exact matches none"):
            check_patterns(parse_recipe(f"thin:exact={exact}:strict=false"), SHAPES)


@pytest.mark.parametrize(
    "rule", ["", "*>int8/64", "*EMBED*>int8/64|*up*>bf16", "blocks.1.*>bf16|*up*>int8|*>int2/32"]
)
def test_patterns_that_decide_something_pass(rule: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_patterns(parse_recipe(f"thin:min_numel=800:grads_for={rule}"), SHAPES)


def test_low_rank_of_one_shape_is_refused_for_parameters_of_another() -> None:
    for rule in ("grads=lowrank=4/37x24", "grads=bf16:grads_for=*embed*>lowrank=4/24x65"):
        with pytest.raises(FormatError, match=r"embed\.weight.*\(65, 24\).*'lowrank=4'"):
            check_shapes(parse_recipe(f"ddp:{rule}"), SHAPES)
    check_shapes(parse_recipe("ddp:grads=bf16:grads_for=*embed*>lowrank=4/65x24"), SHAPES)
    check_shapes(parse_recipe("ddp:grads=lowrank=4"), SHAPES)


REFUSED = {
    "ddp:grads=int4/32:grads_for=*embd*>int8/64": "embd",
    "zero2:grads_for=*head*>int8/64": "head",  # tied: it goes by the name of the embedding
    "zero3:weights_for=*norm*>int8/64": "norm",
    "ddp:grads=int4/32:local_steps=2:grads_for=*embd*>int8/64": "embd",
    "ddp:grads=lowrank=2/3x3:min_numel=0": "embed.weight",
}


def refused_body(rank: int, size: int) -> None:
    for text, named in REFUSED.items():
        with pytest.raises(ConfigError, match=named):
            tw.shard(make_model(), parse_recipe(text))


def test_a_model_is_not_sharded_with_patterns_that_decide_nothing() -> None:
    run_world(refused_body, 1)


def test_neither_is_it_planned() -> None:
    setting = lab_setting("gpt:4x256x4", hosts=2, ranks=1, tokens=64)
    with pytest.raises(ConfigError, match=r"'\*embd\*'.*matches none"):
        make_plan(setting, [parse_recipe("thin:grads_for=*embd*>int8")])
    assert make_plan(setting, [parse_recipe("thin:grads_for=*embed*>int8|blocks.3.*>bf16")]).choice
