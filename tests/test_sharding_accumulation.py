"""Micro-batches: the same sum in every stage, sent as often and kept where the recipe says."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw
from live_bytes import LiveBytes
from small_models import draw_tokens, make_model, token_loss
from thinwire.errors import ConfigError, StateError
from thinwire.recipes import parse_recipe
from world import run_world

MICRO_BATCHES = 3


def accumulated(model: nn.Module, rank: int, step: int = 0) -> None:
    """Forward and backward of one step's micro-batches."""
    for micro in range(MICRO_BATCHES):
        with tw.accumulate(model, is_last=micro == MICRO_BATCHES - 1):
            loss = token_loss(model, draw_tokens(MICRO_BATCHES * step + micro, rank))
            torch.autograd.backward(loss / MICRO_BATCHES)


def whole_gradients(model: nn.Module) -> Tensor:
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return torch.cat([getattr(g, "full_tensor", lambda g=g: g)().flatten() for g in grads])


def plain_gradients(size: int) -> Tensor:
    """What a single process computes from all ranks' micro-batches."""
    model = make_model()
    for rank in range(size):
        for micro in range(MICRO_BATCHES):
            loss = token_loss(model, draw_tokens(micro, rank)) / MICRO_BATCHES / size
            torch.autograd.backward(loss)
    return whole_gradients(model)


EVERY_STAGE = (
    "ddp",
    "ddp:accumulate=keep",
    "ddp:accumulate=keep:grads=int8/128:exact=*",
    "zero1:compute=fp32",
    "zero2:compute=fp32",
    "zero2:compute=fp32:accumulate=keep",
    "zero3:compute=fp32",
    "zero3:compute=fp32:accumulate=keep",
    "qsdp:compute=fp32:exact=*:accumulate=keep",
    "thin:compute=fp32:replica=rank/fp32:exact=*",
    "thin:compute=fp32:replica=rank/fp32:exact=*:stage=2:accumulate=keep",
    "thin:compute=fp32:replica=rank/fp32:exact=*:stage=1",
    "thin:compute=fp32:replica=host/fp32:exact=*:stage=1",
    "zero2:compute=fp32:accumulate=within",
    "zero3:compute=fp32:accumulate=within",
    "qsdp:compute=fp32:exact=*:grads_within=int8/128:accumulate=within:feedback=true",
    "thin:compute=fp32:replica=rank/fp32:exact=*:accumulate=within:stage=2",
)


# what differs where hosts have several ranks
ON_HOSTS = ("zero1:compute=fp32", *EVERY_STAGE[-8:])


def every_stage_body(rank: int, size: int, texts: tuple[str, ...]) -> None:
    expected = plain_gradients(size)
    for text in texts:
        model = tw.shard(make_model(), parse_recipe(text))
        for _ in range(2):  # the second step begins as the first one did
            accumulated(model, rank)
            # sums of some dozen terms of at most the largest gradient, each to 2**-23
            error = (whole_gradients(model) - expected).abs().max()
            assert error <= 1e-6 * expected.abs().max() * 8, text
            model.zero_grad()


@pytest.mark.parametrize(
    ("size", "ranks_per_host", "texts"),
    [(2, 1, EVERY_STAGE), (3, 1, EVERY_STAGE), (4, 2, ON_HOSTS), (3, 3, ON_HOSTS)],
)
def test_one_setting_gives_the_same_gradients_in_every_stage(
    size: int, ranks_per_host: int, texts: tuple[str, ...]
) -> None:
    run_world(every_stage_body, size, texts, ranks_per_host=ranks_per_host)


def calls_body(rank: int, size: int) -> dict[str, dict[str, int]]:
    found = {}
    for text in ("zero1", "zero2", "zero2:accumulate=keep", "zero3", "zero3:accumulate=keep"):
        model = tw.shard(make_model(), parse_recipe(f"{text}:compute=fp32"))
        accumulated(model, rank)
        found[text] = {item["name"]: item["calls"] for item in tw.ledger(model)["collectives"]}
    return found


def test_what_is_sent_follows_the_setting() -> None:
    """Three units, three micro-batches; stage 3 gathers its two blocks before backward again."""
    stage_3 = MICRO_BATCHES * (3 + 2)
    for found in run_world(calls_body, 2):
        assert found == {
            "zero1": {"all_gather": 3, "reduce_scatter": 3},
            "zero2": {"all_gather": 9, "reduce_scatter": 9},
            "zero2:accumulate=keep": {"all_gather": 3, "reduce_scatter": 3},
            "zero3": {"all_gather": stage_3, "reduce_scatter": 9},
            "zero3:accumulate=keep": {"all_gather": stage_3, "reduce_scatter": 3},
        }


@contextmanager
def stock_accumulation(model: FSDPModule, *, is_last: bool) -> Iterator[None]:
    """What a user of PyTorch alone would write for stage 1."""
    model.set_requires_gradient_sync(is_last)
    model.set_reshard_after_backward(is_last)
    yield


def stage_1_body(rank: int, size: int) -> None:
    stock = make_model()
    for module in (*stock.blocks, stock):
        fully_shard(module, reshard_after_forward=False)
    assert isinstance(stock, FSDPModule)
    ours = tw.shard(make_model(), parse_recipe("zero1:compute=fp32"))
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-2) for model in (stock, ours)]
    for step in range(4):
        for micro in range(MICRO_BATCHES):
            is_last = micro == MICRO_BATCHES - 1
            tokens = draw_tokens(MICRO_BATCHES * step + micro, rank)
            with stock_accumulation(stock, is_last=is_last):
                torch.autograd.backward(expected := token_loss(stock, tokens))
            with tw.accumulate(ours, is_last=is_last):
                torch.autograd.backward(found := token_loss(ours, tokens))
            assert torch.equal(found, expected)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("size", [2, 3])
def test_stage_1_is_stock_to_the_bit(size: int) -> None:
    run_world(stage_1_body, size)


WIDTH, DEPTH = 128, 4
BLOCK_NUMEL = WIDTH * WIDTH


class Deep(nn.Module):
    """Blocks of one matrix each, so that bytes are easily counted."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = torch.tanh(block(x))
        return x


def between_body(rank: int, size: int) -> dict[str, int]:
    """Bytes that a micro-batch, which is not the last, leaves behind."""
    left = {}
    for text in ("zero1", "zero2", "zero3", "zero3:accumulate=keep"):
        recipe = parse_recipe(f"{text}:compute=fp32:min_numel=0")
        model = tw.shard(Deep(), recipe, overlap=False)
        x = torch.ones(1, WIDTH)
        with LiveBytes(model.parameters()) as live, tw.accumulate(model, is_last=False):
            before = live.current
            torch.autograd.backward(model(x).square().sum())
            # gloo's threads let go of a buffer a little after the call
            left[text] = min(_pause_and_count(live) for _ in range(20)) - before
    return left


def _pause_and_count(live: LiveBytes) -> int:
    time.sleep(0.01)
    return live.current


@pytest.mark.parametrize("size", [2, 4])
def test_memory_shows_the_stage(size: int) -> None:
    """Between micro-batches: gradients and weights whole, a share, a share, gradients whole."""
    whole = 4 * BLOCK_NUMEL * DEPTH
    small = 4 * 20 * WIDTH  # activations' last references, and what autograd still holds
    for left in run_world(between_body, size):
        expected = {
            "zero1": 2 * whole,
            "zero2": whole / size,
            "zero3": whole / size,
            "zero3:accumulate=keep": whole,
        }
        for text, bytes_left in left.items():
            assert abs(bytes_left - expected[text]) <= small, (text, bytes_left, expected[text])


INT4 = "zero3:compute=fp32:grads=int4/64+stochastic:min_numel=0"


def within_body(rank: int, size: int) -> dict[str, tuple[list[Tensor], int, int]]:
    """By recipe the shards' gradients of three steps, and the bytes of a step."""
    found = {}
    for text, overlap in (
        ("accumulate=sync", True),
        ("accumulate=keep", True),
        ("accumulate=within", True),
        ("accumulate=within:staleness=1", True),
        ("accumulate=within:staleness=1", False),
    ):
        recipe = parse_recipe(f"{INT4}:grads_within=int8/64:feedback=true:{text}")
        model = tw.shard(make_model(), recipe, overlap=overlap)
        gradients = []
        for step in range(3):
            model.zero_grad()
            accumulated(model, rank, step)
            gradients.append(whole_gradients(model))
        sent = {entry["name"]: entry for entry in tw.ledger(model)["collectives"]}
        reduced = sent["reduce_scatter"]
        found[f"{text} {overlap}"] = (
            gradients,
            reduced["within_bytes"] // 3,
            reduced["across_bytes"] // 3,
        )
    return found


def test_within_sends_across_as_often_as_keep_and_within_as_often_as_sync() -> None:
    for found in run_world(within_body, 4, ranks_per_host=2):
        _, sync_within, sync_across = found["accumulate=sync True"]
        _, keep_within, keep_across = found["accumulate=keep True"]
        in_time, within_bytes, across_bytes = found["accumulate=within True"]
        assert across_bytes == keep_across == sync_across // MICRO_BATCHES > 0
        assert within_bytes == sync_within == MICRO_BATCHES * keep_within > 0
        for overlap in (True, False):
            late, *sent = found[f"accumulate=within:staleness=1 {overlap}"]
            assert sent == [within_bytes, across_bytes]
            assert not late[0].any()
            assert all(torch.equal(a, b) for a, b in zip(late[1:], in_time, strict=False))


class Early(nn.Module):
    """A block of three that only the first micro-batch uses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def forward(self, x: Tensor, *, is_first: bool) -> Tensor:
        first, early, last = self.blocks
        x = torch.tanh(first(x))
        out: Tensor = last(torch.tanh(early(x)) if is_first else x)
        return out


def early_gradients(model: nn.Module, rank: int, *, by_thinwire: bool) -> Tensor:
    for micro in range(2):
        x = torch.full((1, WIDTH), 0.1 * (1 + rank + micro))
        loss = model(x, is_first=micro == 0).square().sum()
        with tw.accumulate(model, is_last=micro == 1) if by_thinwire else nullcontext():
            torch.autograd.backward(loss)
    return whole_gradients(model)


EARLY_TEXTS = (
    "zero1",
    *(f"zero{stage}:accumulate={when}" for stage in (2, 3) for when in ("sync", "keep", "within")),
    "zero3:hybrid=true:accumulate=within",
    "thin:weights=fp32:grads=fp32:replica=rank/fp32:exact=*:accumulate=within",
    "hsdp:exact=*:accumulate=within",
)


def early_body(rank: int, size: int) -> dict[str, Tensor]:
    found = {}
    for text in EARLY_TEXTS:
        early, recipe = Early(), parse_recipe(f"{text}:compute=fp32")
        model = tw.shard(early, recipe, blocks=list(early.blocks))
        found[text] = early_gradients(model, rank, by_thinwire=True)
    return found


def test_a_block_that_the_last_micro_batch_did_not_use_is_not_left_behind() -> None:
    size = 4
    alone = Early()
    for rank in range(size):
        early_gradients(alone, rank, by_thinwire=False)
    expected = whole_gradients(alone) / size
    for found in run_world(early_body, size, ranks_per_host=2):
        for text, gradients in found.items():
            torch.testing.assert_close(gradients, expected, msg=text)


def refusals_body(rank: int, size: int) -> None:
    with (
        pytest.raises(StateError, match=r"thinwire\.shard"),
        tw.accumulate(nn.Linear(1, 1), is_last=True),
    ):
        pass
    model = tw.shard(make_model(), parse_recipe("ddp"))
    assert isinstance(model, DistributedDataParallel)
    with pytest.raises(ConfigError, match="is_last"), tw.accumulate(model, is_last=1):  # type: ignore[arg-type]
        pass
    with pytest.raises(ConfigError, match="accumulate=keep"):
        tw.shard(make_model(), parse_recipe("ddp:accumulate=within"))


def test_what_cannot_be_is_refused() -> None:
    run_world(refusals_body, 1)


def failing_body(rank: int, size: int) -> None:
    """A micro-batch that failed leaves no setting behind."""
    model = tw.shard(make_model(), parse_recipe("zero1:compute=fp32"))
    with pytest.raises(ZeroDivisionError), tw.accumulate(model, is_last=False):
        raise ZeroDivisionError
    torch.autograd.backward(token_loss(model, draw_tokens(0, rank)))
    assert all(p.grad is not None for p in model.parameters())


def test_a_failed_micro_batch_leaves_nothing_behind() -> None:
    run_world(failing_body, 2)
