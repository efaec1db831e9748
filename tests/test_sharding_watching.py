"""Steps of optimizers are watched for as long as a model lives, whenever it goes."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from thinwire.sharding.counters import watch_steps


def make_watched(steps: list[str], name: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(2, 2)
    watch_steps(model, lambda: steps.append(name))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def take_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


def test_each_model_hears_of_its_own_optimizer_only() -> None:
    steps: list[str] = []
    first, second = make_watched(steps, "first"), make_watched(steps, "second")
    take_step(*second)
    take_step(*first)
    watch_steps(first[0], lambda: steps.append("first again"))
    take_step(*first)
    assert steps == ["second", "first", "first", "first again"]


def test_a_model_may_be_collected_in_the_middle_of_another_ones_step() -> None:
    """torch walks through its hooks as they are: one that goes meanwhile fails that step."""
    steps: list[str] = []
    gone, optimizer = make_watched(steps, "gone")
    take_step(gone, optimizer)
    cycle = [gone, optimizer]
    cycle.append(cycle)
    trace = weakref.ref(gone)
    gc.disable()

    def collect(*_: object) -> None:
        gc.collect()

    collecting = register_optimizer_step_post_hook(collect)
    try:
        del gone, optimizer, cycle
        assert trace() is not None
        take_step(*make_watched(steps, "kept"))
    finally:
        collecting.remove()
        gc.enable()
    assert trace() is None
    assert steps == ["gone", "kept"]
    take_step(*make_watched(steps, "next"))
    assert steps[-1] == "next"


@pytest.mark.parametrize("frozen", [True, False])
def test_the_first_trained_parameter_decides(frozen: bool) -> None:
    steps: list[str] = []
    model, optimizer = make_watched(steps, "model")
    model.get_parameter("weight").requires_grad_(not frozen)
    rest = torch.optim.SGD([model.get_parameter("bias")], lr=0.1)
    take_step(model, rest)
    assert steps == (["model"] if frozen else [])
    optimizer.step()
    assert steps == ["model"] * (2 if frozen else 1)
