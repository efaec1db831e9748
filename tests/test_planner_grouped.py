"""The planner's layers are the modules that travel together."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from planner_settings import accelerators, lab_setting
from thinwire.planner.group import Parallelism
from thinwire.planner.grouped import grouped_layers
from thinwire.planner.prediction import predict
from thinwire.planner.request import ClusterRequest, PlanRequest
from thinwire.planner.traffic import recipe_traffic
from thinwire.planner.workload import Layer, Parameter
from thinwire.recipes import parse_recipe
from thinwire.sharding.blocks import find_blocks
from thinwire.train.model_spec import parse_model
from thinwire.train.models import build_model

MODEL, SEQ = "gpt:9x50x5", 12


def test_they_are_those_of_the_model() -> None:
    torch.manual_seed(0)
    model = build_model(parse_model(MODEL, seq_len=SEQ), seq_len=SEQ)
    setting = lab_setting(MODEL, hosts=2, ranks=1, tokens=SEQ)
    for group_bytes, count in ((0, 9), (150_000, 5), (2**20, 1)):
        # a pattern with an index has every group named by itself
        recipe = parse_recipe(f"zero3:weights=int8/128:group_bytes={group_bytes}:exact=1d|*.99.*")
        blocks = find_blocks(model, group_bytes, 2)
        assert len(blocks) == count
        layers = [item.layer for item in recipe_traffic(setting, recipe).layers]
        planned = [n for run in layers for i in range(run.count) for n in _names(run, i)]
        lists = [block if isinstance(block, list) else [block] for block in blocks]
        names = {module: name for name, module in model.named_modules()}
        assert planned == [
            f"{names[block]}.{name}"
            for group in lists
            for block in group
            for name, _ in block.named_parameters()
        ]
        assert sum(run.count for run in layers) == count


def _names(run: Layer, index: int) -> list[str]:
    return list(run.parameter_names(run.start + index))


def test_a_container_ends_a_group_and_a_large_layer_too() -> None:
    def run(name: str, rows: int, count: int, start: int = 0) -> Layer:
        weight = Parameter(name="weight", shape=(rows, 8))
        return Layer(name=name, start=start, count=count, parameters=(weight,), boundary=8.0)

    runs = [run("a.{}", 4, 3), run("b.{}", 4, 1), run("b.{}", 99, 7, 1), run("b.{}", 4, 2, 8)]
    # 64 bytes a small layer in bf16, of which three do not fit
    recipe = parse_recipe("thin:group_bytes=128")
    grouped = list(grouped_layers(runs, recipe))
    assert [(layer.name, layer.count, layer.numel) for layer in grouped] == [
        ("a", 1, 64),
        ("a.{}", 1, 32),
        ("b.{}", 1, 32),
        ("b.{}", 7, 8 * 99),
        ("b", 1, 64),
    ]
    assert list(grouped[0].parameter_names(0)) == ["a.0.weight", "a.1.weight"]
    assert list(grouped[4].parameter_names(0)) == ["b.8.weight", "b.9.weight"]
    assert sum(layer.count * layer.boundary for layer in grouped) == 13 * 8.0


@pytest.mark.parametrize("model", ["gpt:30x128x8", "gpt:31x160x8", "gpt:2x64x4"])
@pytest.mark.parametrize("device", ["cpu", "a100-40gb"])
def test_a_run_of_groups_is_those_groups_one_by_one(model: str, device: str) -> None:
    """A pattern that could tell layers apart, and does not, changes no number."""
    cluster = ClusterRequest(hosts=2, ranks=2, device=device, link="1gbit")
    setting = PlanRequest(model=model, seq=64, accumulate=3, cluster=cluster).setting()
    for name in ("zeropp", "thin", "qsdp:accumulate=within", "sdp4bit:accumulate=keep"):
        merged = parse_recipe(name)
        single = dataclasses.replace(merged, exact=(*merged.exact, "*.99.*"))
        few, many = (recipe_traffic(setting, recipe).layers for recipe in (merged, single))
        assert len(few) <= min(2, len(many))
        run, one = (predict(setting, recipe) for recipe in (merged, single))
        assert run.memory.device.to_json() == one.memory.device.to_json()
        assert run.sent.total_bytes == pytest.approx(one.sent.total_bytes, rel=1e-12)
        # a run is one multiplication, and rounds otherwise than a sum
        assert run.step_s == pytest.approx(one.step_s, rel=1e-9)


def test_fewer_launches_take_less_time_for_the_same_bytes() -> None:
    setting = lab_setting("gpt:24x64x4", hosts=4, ranks=1, tokens=64)
    alone, grouped = (
        predict(setting, parse_recipe(f"zero3:weights=int8/128:grads=int4/128{tail}"))
        for tail in (":group_bytes=0", "")
    )
    assert grouped.sent == alone.sent
    assert grouped.step_s < alone.step_s


def test_other_parallelism_groups_by_itself() -> None:
    setting = accelerators("gpt:24x64x4", parallelism=Parallelism(tp=2))
    layers = recipe_traffic(setting, parse_recipe("thin")).layers
    assert sum(item.layer.count for item in layers) == 24


def test_a_module_of_torch_is_what_is_counted() -> None:
    """The width of an element is that of the dtype that computes, in the plan and in the model."""
    holder = nn.Module()
    holder.blocks = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(2))
    layer = Layer(name="blocks.{}", count=2, parameters=(Parameter(name="weight", shape=(8, 8)),))
    for compute, element_bytes in (("bf16", 2), ("fp32", 4)):
        recipe = parse_recipe(f"thin:compute={compute}:group_bytes=256")
        blocks = find_blocks(holder, recipe.grouped_bytes, element_bytes)
        assert len(blocks) == sum(run.count for run in grouped_layers([layer], recipe))
