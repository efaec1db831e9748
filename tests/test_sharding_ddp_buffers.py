"""Buffers under DDP: rank 0's everywhere, as DDP has it, counted, and its own hooks left alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _BufferCommHookLocation

import thinwire as tw
from thinwire.errors import ConfigError, StateError
from thinwire.recipes import parse_recipe
from world import run_world

INT8 = "ddp:grads=int8/128:min_numel=0"


class Normed(nn.Module):
    """A model with averages, a counter, and a buffer without elements."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.norm, self.down = nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 1)
        self.register_buffer("nothing", torch.empty(0))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(self.norm(self.up(x)))
        return out


def batch(rank: int, step: int) -> Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * rank + step))


def train(model: nn.Module, rank: int) -> list[Tensor]:
    """Three steps; the buffers as each forward pass leaves them."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for step in range(3):
        model(batch(rank, step)).square().mean().backward()
        seen.append(torch.cat([buffer.double().flatten() for buffer in model.buffers()]))
        optimizer.step()
        optimizer.zero_grad()
    return seen


def buffers_body(rank: int, size: int) -> None:
    stock = train(DistributedDataParallel(Normed()), rank)
    for text in ("ddp", "ddp:grads=bf16", INT8):
        model = tw.shard(Normed(), parse_recipe(text))
        seen = train(model, rank)
        if text == "ddp":
            assert all(map(torch.equal, seen, stock))
        # the first forward pass comes before any gradient
        assert torch.equal(seen[0], stock[0])
        broadcast = next(
            entry for entry in tw.ledger(model)["collectives"] if entry["name"] == "broadcast"
        )
        # two averages of six fp32 and a counter of int64; a call for each dtype in each forward
        assert broadcast["calls"] == 2 * 3
        # rank 0 tells 1, then 2, while 1 tells 3; who is told last tells nobody
        told = {0: (size - 1).bit_length(), 1: int(size > 3)}.get(rank, 0)
        sent_bytes = broadcast["across_bytes"] + broadcast["within_bytes"]
        assert sent_bytes == 3 * (2 * 6 * 4 + 8) * told


@pytest.mark.parametrize("size", [2, 3, 4])
def test_buffers_are_those_of_plain_ddp_and_counted(size: int) -> None:
    run_world(buffers_body, size)


def left_alone_body(rank: int, size: int) -> None:
    def hook(calls: list[int], _buffers: dict[str, Tensor]) -> None:
        calls.append(1)

    calls: list[int] = []
    model = DistributedDataParallel(Normed())
    model._register_buffer_comm_hook(calls, hook, _BufferCommHookLocation.PRE_FORWARD)
    tw.compress(model, parse_recipe(INT8))
    train(model, rank)
    assert len(calls) == 3
    assert not _broadcasts(model)
    silent = DistributedDataParallel(Normed(), broadcast_buffers=False)
    tw.compress(silent, parse_recipe(INT8))
    train(silent, rank)
    assert not _broadcasts(silent)
    evaluated = tw.shard(Normed(), parse_recipe(INT8)).eval()
    evaluated(batch(rank, 0))
    assert _broadcasts(evaluated)


def _broadcasts(model: nn.Module) -> bool:
    return "broadcast" in {entry["name"] for entry in tw.ledger(model)["collectives"]}


def test_a_hook_of_the_users_and_a_refusal_to_broadcast_stay() -> None:
    run_world(left_alone_body, 2)


def join_body(rank: int, size: int) -> None:
    model = tw.shard(Normed(), parse_recipe(INT8))
    assert isinstance(model, DistributedDataParallel)
    with pytest.raises(ConfigError, match="broadcast_buffers=False"), Join([model]):
        model(batch(rank, 0))


def test_a_join_that_would_choose_the_rank_is_refused() -> None:
    run_world(join_body, 2)


def uneven_body(rank: int, size: int, text: str) -> float:
    """Rank 1 has twice as much data; while it goes on, rank 0 contributes zeros."""
    model = DistributedDataParallel(Normed(), broadcast_buffers=False)
    tw.compress(model, parse_recipe(text))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Join([model]):
        for step in range(3 * (1 + rank)):
            model(batch(rank, step)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return sum(p.double().sum().item() for p in model.parameters())


@pytest.mark.parametrize("text", ["ddp", INT8, "ddp:grads=int4/128:feedback=true:min_numel=0"])
def test_ranks_with_uneven_data_may_join(text: str) -> None:
    first, second = run_world(uneven_body, 2, text)
    # rank 0 has what was broadcast to it at the end
    assert first == second


def unfrozen_body(rank: int, size: int) -> None:
    model = Normed()
    model.up.weight.requires_grad_(False)
    sharded = tw.shard(model, parse_recipe(INT8))
    train(sharded, rank)
    model.up.weight.requires_grad_(True)
    with pytest.raises(StateError, match=r"up\.weight was frozen when the model was wrapped"):
        sharded(batch(rank, 0))
    model.up.weight.requires_grad_(False)
    train(sharded, rank)


def test_unfreezing_what_ddp_has_no_bucket_for_is_refused() -> None:
    """Each rank would train it on its own gradient, and the copies drift apart."""
    run_world(unfrozen_body, 2)
