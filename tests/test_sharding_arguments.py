"""Bad arguments of `shard` and `compress`: a clear error on every rank, and nothing is changed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw
from small_models import make_model, train
from thinwire.errors import ConfigError
from thinwire.recipes import parse_recipe
from world import run_world

QSDP, DDP, LOCAL = "qsdp", "ddp:grads=int8/128", "ddp:local_steps=2"


class Nest(nn.Module):
    """Blocks of blocks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(8, 8)
        others = [nn.Sequential(nn.Linear(8, 8)) for _ in range(2)]
        self.layers = nn.ModuleList([nn.Sequential(self.inner, nn.Linear(8, 8)), *others])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def frozen() -> nn.Module:
    return make_model().requires_grad_(False)


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return nn.Linear(4, 4)


Blocks = Callable[[Nest], Any]
BLOCKS: list[tuple[Blocks, str]] = [
    (lambda _: "layers", "a list of modules of the model is expected, not 'layers'"),
    (lambda _: ["layers.0"], "modules are expected, not 'layers.0'"),
    (lambda _: [None], "modules are expected, not None"),
    (lambda nest: nest.layers[0], "a list of modules of the model is expected"),
    (lambda nest: [nest.layers[0], []], "an empty list among them"),
    (lambda _: [nn.Linear(8, 8)], "a Linear among them is no part of this model"),
    (lambda _: list(Nest().layers), "no part of this model"),
    (lambda nest: [nest.layers[0], nest.layers[0]], "layers.0 is there twice"),
    (lambda nest: [nest.layers[0], nest.inner], "inner is there twice, or after a block"),
    (lambda nest: [[nest.layers[0], nest.layers[1]], nest.layers[1]], "layers.1 is there twice"),
    (lambda nest: [nest], "the whole model is among them"),
    (lambda nest: [nest.layers], "layers is a container"),
]
MODELS: list[tuple[Callable[[], Any], str, str]] = [
    (lambda: None, QSDP, "a model is expected, a torch.nn.Module, not None"),
    (lambda: "gpt", QSDP, "not 'gpt' (str)"),
    (lambda: nn.LazyLinear(3), QSDP, "weight has no shape yet"),
    (frozen, DDP, "no parameter of the model is trained"),
    (frozen, LOCAL, "no parameter of the model is trained"),
    (nn.Identity, DDP, "no parameter of the model is trained"),
    (on_meta, DDP, "weight is on the meta device"),
    (on_meta, LOCAL, "weight is on the meta device"),
]


def shard_body(rank: int, size: int) -> None:
    for blocks, said in BLOCKS:
        nest = Nest()
        with pytest.raises(ConfigError, match=re.escape(said)):
            tw.shard(nest, parse_recipe(QSDP), blocks=blocks(nest))
        assert type(nest) is Nest  # fully_shard changes the class
    for make, text, said in MODELS:
        with pytest.raises(ConfigError, match=re.escape(said)):
            tw.shard(make(), parse_recipe(text))
    for mesh in (2, "host"):
        with pytest.raises(ConfigError, match=r"mesh: a .*DeviceMesh is expected"):
            tw.shard(make_model(), parse_recipe(QSDP), mesh=mesh)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"overlap: 'no' \(str\) is not True or False"):
        tw.shard(make_model(), parse_recipe(QSDP), overlap="no")  # type: ignore[arg-type]
    # one rank's mistake is everyone's error
    nest = Nest()
    with pytest.raises(ConfigError, match="no part of" if rank else r"refused on rank\(s\) 1"):
        tw.shard(nest, parse_recipe(QSDP), blocks=[Nest().layers[0] if rank else nest.layers[0]])


def test_what_shard_cannot_take_is_refused_by_name_before_anything_is_wrapped() -> None:
    run_world(shard_body, 2)


def accepted_body(rank: int, size: int) -> None:
    nest = Nest()
    tw.shard(nest, parse_recipe(QSDP), blocks=[nest.inner, nest.layers[0], nest.layers[1]])
    nest(torch.ones(2, 8)).sum().backward()


def test_blocks_in_blocks_are_taken_from_the_inside() -> None:
    run_world(accepted_body, 2)


def compress_body(rank: int, size: int) -> None:
    for text in (QSDP, DDP, "zeropp"):
        with pytest.raises(ConfigError, match="under neither fully_shard nor Distributed"):
            tw.compress(make_model(), parse_recipe(text))
    with pytest.raises(ConfigError, match=r"a model is expected.* not None"):
        tw.compress(None, parse_recipe(DDP))  # type: ignore[arg-type]
    model = DistributedDataParallel(make_model())
    with pytest.raises(ConfigError, match="is not True or False"):
        tw.compress(model, parse_recipe(DDP), overlap=1)  # type: ignore[arg-type]
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    with pytest.raises(ConfigError, match="takes no communication hook"):
        tw.compress(model, parse_recipe(DDP))
    train(model, rank, 1)  # its own hook is what it has


def test_what_compress_cannot_take_is_refused() -> None:
    run_world(compress_body, 2)


def buffers_body(rank: int, size: int) -> None:
    model = make_model()
    model.register_buffer("average", torch.zeros(3 + rank))
    with pytest.raises(ConfigError, match=r"list of buffers differs.*average \[3\].*average \[4\]"):
        tw.shard(model, parse_recipe(DDP))


def test_buffers_of_other_sizes_are_told_before_their_values_slide_into_each_other() -> None:
    run_world(buffers_body, 2)
