"""What one rank alone asks for, or does otherwise than the others, is an error on every rank."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw
from small_models import SmallModel, draw_tokens, make_model, token_loss
from thinwire.errors import ThinwireError
from thinwire.recipes import parse_recipe
from world import run_world

QSDP = "qsdp:min_numel=0"


def shard(model: nn.Module, text: str = QSDP) -> nn.Module:
    return tw.shard(model, parse_recipe(text))


def blocks(choose: Callable[[SmallModel], object], text: str = QSDP) -> nn.Module:
    model = make_model()
    return tw.shard(model, parse_recipe(text), blocks=choose(model))  # type: ignore[arg-type]


def wrapped(*names: str) -> SmallModel:
    model = make_model()
    for name in names:
        fully_shard(model.get_submodule(name))
    fully_shard(model)
    return model


def compress(model: nn.Module, text: str = QSDP) -> None:
    tw.compress(model, parse_recipe(text))


def hooked() -> DistributedDataParallel:
    model = DistributedDataParallel(make_model())
    model.register_comm_hook(None, allreduce_hook)
    return model


# what every rank but the last does, what the last one does, and what its own error says
CASES: dict[str, tuple[Callable[[], object], Callable[[], object], str]] = {
    "fewer blocks": (
        lambda: blocks(lambda m: list(m.blocks)),
        lambda: blocks(lambda m: [m.blocks[0]]),
        "division of the model into blocks",
    ),
    "blocks together": (
        lambda: blocks(lambda m: list(m.blocks)),
        lambda: blocks(lambda m: [list(m.blocks)]),
        "division of the model into blocks",
    ),
    "blocks of numbers": (
        lambda: blocks(lambda m: list(m.blocks)),
        lambda: blocks(lambda _: [3]),
        "",
    ),
    "blocks that the recipe chooses": (
        lambda: shard(make_model(), f"{QSDP}:group_bytes=9"),
        lambda: blocks(lambda m: list(m.blocks), f"{QSDP}:group_bytes=9"),
        "leave one of them out",
    ),
    "blocks under DDP": (
        lambda: shard(make_model(), "ddp"),
        lambda: blocks(lambda m: list(m.blocks), "ddp"),
        "leave them out",
    ),
    "a mesh under hybrid": (
        lambda: shard(make_model(), "hsdp"),
        lambda: tw.shard(make_model(), parse_recipe("hsdp"), mesh=init_device_mesh("cpu", (2,))),
        "no mesh to choose",
    ),
    "a text for a recipe": (
        lambda: shard(make_model()),
        lambda: tw.shard(make_model(), QSDP),  # type: ignore[arg-type]
        "parse_recipe",
    ),
    "another recipe": (
        lambda: shard(make_model()),
        lambda: shard(make_model(), f"{QSDP}:seed=1"),
        "recipe differs",
    ),
    "a wrapped model": (
        lambda: shard(make_model()),
        lambda: shard(wrapped()),
        r"thinwire\.compress",
    ),
    "no model": (
        lambda: shard(make_model()),
        lambda: shard(torch.zeros(3)),  # type: ignore[arg-type]
        "a model is expected",
    ),
    "a model wrapped otherwise": (
        lambda: compress(wrapped("blocks.0")),
        lambda: compress(wrapped("blocks.1")),
        "division of the model into blocks",
    ),
    "a model that is not wrapped": (
        lambda: compress(wrapped()),
        lambda: compress(make_model()),
        "under neither fully_shard nor",
    ),
    "a model that has a hook": (
        lambda: compress(DistributedDataParallel(make_model()), "ddp:grads=int4/128"),
        lambda: compress(hooked(), "ddp:grads=int4/128"),
        "takes no communication hook",
    ),
}


def lone_rank_body(rank: int, size: int) -> None:
    for usual, odd, message in CASES.values():
        is_odd = rank == size - 1
        answer = message if is_odd else "refused on rank|between ranks"
        with pytest.raises(ThinwireError, match=answer):
            (odd if is_odd else usual)()
    # all ranks are still at the same place
    model = shard(make_model())
    token_loss(model, draw_tokens(0, rank)).backward()  # type: ignore[no-untyped-call]


def test_what_one_rank_refuses_is_refused_on_every_rank() -> None:
    run_world(lone_rank_body, 3)


def twice_body(rank: int, size: int) -> None:
    """The last rank's model is compressed already; on the others it is not."""
    model = wrapped()
    compress(model)
    last = model if rank == size - 1 else wrapped()
    with pytest.raises(ThinwireError, match=r"compressed already|refused on rank"):
        compress(last)


def test_what_only_one_rank_has_compressed_is_refused_on_every_rank() -> None:
    run_world(twice_body, 2)
