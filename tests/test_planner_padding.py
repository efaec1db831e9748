"""Padding: as FSDP2 chunks rows, in what is held and in what is said of it."""

from __future__ import annotations

import pytest
import torch

from thinwire.planner.padding import padding_factor, padding_reasons
from thinwire.planner.payload import row_pieces
from thinwire.planner.request import ClusterRequest, PlanRequest
from thinwire.planner.setting import Setting
from thinwire.planner.states import held_states
from thinwire.planner.traffic import recipe_traffic
from thinwire.recipes import parse_recipe, parse_recipes


def setting_of(model: str, hosts: int, ranks: int) -> Setting:
    cluster = ClusterRequest(hosts=hosts, ranks=ranks, device="h100-80gb", link="400gbit")
    return PlanRequest(model=model, seq=512, cluster=cluster).setting()


@pytest.mark.parametrize("rows", [1, 2, 7, 8, 9, 64, 1000])
@pytest.mark.parametrize("world", [1, 2, 3, 8, 64, 512])
def test_rows_are_padded_as_fsdp2_chunks_them(rows: int, world: int) -> None:
    """FSDP2 pads every rank's chunk to that of rank 0, which torch.chunk makes the largest."""
    largest = torch.chunk(torch.empty(rows, 3, device="meta"), world, dim=0)[0]
    assert row_pieces((rows, 3), world) == largest.numel()


def test_fused_experts_are_padded_to_a_row_a_rank() -> None:
    """8 experts over 512 ranks: 64 times; all else of the model has rows enough."""
    setting = setting_of("mixtral-8x7b", 64, 8)
    (layer,) = setting.layers()
    experts = [p for p in layer.parameters if ".experts." in p.name]
    for parameter in experts:
        assert 512 * row_pieces(parameter.shape, 512) == 64 * parameter.numel
    inside = layer.count * sum(p.numel for p in experts) / setting.workload.num_parameters
    factor = padding_factor(setting, parse_recipe("zero3"))
    assert factor == pytest.approx(1 + 63 * inside, rel=0.01)


@pytest.mark.parametrize("model", ["mixtral-8x7b", "llama-2-7b", "gpt:4x256x4"])
@pytest.mark.parametrize(("hosts", "ranks"), [(1, 1), (2, 3), (8, 8), (64, 8)])
@pytest.mark.parametrize("text", ["ddp", "zero1", "zero3", "zeropp", "hsdp"])
def test_the_factor_is_what_ranks_hold(model: str, hosts: int, ranks: int, text: str) -> None:
    setting, recipe = setting_of(model, hosts, ranks), parse_recipe(text)
    states = held_states(setting, recipe, recipe_traffic(setting, recipe))
    world = setting.sharing(recipe).size if recipe.stage else 1
    held = states.share_numel * world / states.whole_numel
    assert padding_factor(setting, recipe) == pytest.approx(held, rel=1e-12)


def test_padding_is_told_where_it_is_much() -> None:
    recipes = parse_recipes("ddp,zero1,zero2,zero3,qsdp,hsdp")
    (told,) = padding_reasons(setting_of("mixtral-8x7b", 64, 8), recipes)
    assert "(zero1, zero2, zero3 and 1 more)" in told
    assert "gate_up_proj has 8 rows for 512 ranks" in told
    assert "hybrid=true" in told
    for model, hosts in (("mixtral-8x7b", 1), ("llama-2-70b", 64), ("gpt:24x2048x16", 8)):
        assert padding_reasons(setting_of(model, hosts, 8), recipes) == []
