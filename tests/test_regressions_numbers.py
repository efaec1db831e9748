"""Wrong numbers that users of other sharded trainers reported; each test is one such story.

``exact=*`` sends everything as it is through every part of ours. With two ranks the sum of two
numbers does not depend on the order, so results must be those of stock FSDP2 to the bit.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw
from small_models import draw_tokens, make_model, token_loss, train
from thinwire.formats import parse_format
from thinwire.recipes import parse_recipe
from thinwire.wire.key import Key
from thinwire.wire.packing import Packing, Segment
from world import run_world

STOCK = "zero3:compute=fp32"
LOSSLESS = [
    "qsdp:compute=fp32:exact=*",
    "zeropp:compute=fp32:exact=*",
    "thin:compute=fp32:replica=rank/fp32:exact=*",
    "thin:compute=fp32:replica=host/fp32:exact=*",
]


def backward(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def whole(tensor: Tensor) -> Tensor:
    return getattr(tensor, "full_tensor", lambda: tensor)()


def interrupted(recipe: str, rank: int, pause: Callable[[nn.Module, int], None]) -> list[float]:
    """Losses of a run in which something happens between two steps."""
    model = tw.shard(make_model(), parse_recipe(recipe))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(6):
        loss = token_loss(model, draw_tokens(step, rank))
        backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        pause(model, step)
    return losses


def evaluate(model: nn.Module, step: int) -> None:
    model.eval()
    with torch.no_grad():
        token_loss(model, draw_tokens(100 + step, 0))
    model.train()


def infer(model: nn.Module, step: int) -> None:
    model.eval()
    with torch.inference_mode():
        token_loss(model, draw_tokens(100 + step, 0))
    model.train()


def load(model: nn.Module, step: int) -> None:
    """Other weights, after a forward pass that may have left a copy of the old ones."""
    evaluate(model, step)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # FSDP2 loads into shards, and the root is still whole
    options = StateDictOptions(full_state_dict=True)
    set_model_state_dict(model, copy.deepcopy(make_model(step).state_dict()), options=options)


PAUSES = {"evaluate": evaluate, "infer": infer, "load": load}


def pause_body(rank: int, size: int, pause: str) -> None:
    stock = interrupted(STOCK, rank, PAUSES[pause])
    for recipe in ["hpz:compute=fp32", *LOSSLESS]:
        assert interrupted(recipe, rank, PAUSES[pause]) == stock, recipe


@pytest.mark.parametrize("pause", PAUSES)
@pytest.mark.parametrize("per_host", [1, 2])
def test_what_happens_between_steps_changes_no_later_step(pause: str, per_host: int) -> None:
    """Validation between steps, or weights loaded, and the next step saw the copy from before."""
    run_world(pause_body, 2, pause, ranks_per_host=per_host)


def accumulate_body(rank: int, size: int) -> None:
    """Three micro-batches without reduction, one with, as stock; weights change once."""
    found: list[list[Tensor]] = []
    for recipe in [STOCK, *LOSSLESS]:
        model = tw.shard(make_model(), parse_recipe(recipe))
        assert isinstance(model, FSDPModule)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(2):
            for micro in range(4):
                model.set_requires_gradient_sync(micro == 3)
                backward(token_loss(model, draw_tokens(4 * step + micro, rank)) / 4)
            optimizer.step()
            optimizer.zero_grad()
        found.append([whole(p.detach()) for p in model.parameters()])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(other, found[0], strict=True))


def test_accumulation_without_reduction_is_that_of_stock() -> None:
    run_world(accumulate_body, 2)


def norms_of(model: nn.Module, rank: int, micro: int = 1) -> list[float]:
    """Gradient norms before clipping, over five clipped steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    norms = []
    for step in range(5):
        ranks = [rank] if micro == 1 else range(micro)
        for other in ranks:
            backward(token_loss(model, draw_tokens(step, other)) / micro)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        norms.append(whole(norm).item())
        optimizer.step()
        optimizer.zero_grad()
    return norms


def norms_body(rank: int, size: int) -> None:
    expected = norms_of(make_model(), 0, micro=size)
    assert min(expected) > 0.5  # every step really clips
    recipes = ("ddp", "zero2:compute=fp32", STOCK, "ddp:grads=int8/128:exact=*", *LOSSLESS)
    for recipe in recipes:
        norms = norms_of(tw.shard(make_model(), parse_recipe(recipe)), rank)
        # fp32 sums in another order: a few roundings of 6e-8, over five steps
        assert norms == pytest.approx(expected, rel=1e-5), recipe


@pytest.mark.parametrize("size", [2, 3])
def test_the_clipped_norm_is_that_of_a_single_process(size: int) -> None:
    """Clipping with the norm of a shard trained every rank by another factor."""
    run_world(norms_body, size)


GRID = [
    f"{base}:compute={compute}:min_numel=0{replica}"
    for base in ("zero3:weights=int8/128", "zero3:grads=int4/128", "zeropp")
    for compute in ("fp32", "bf16")
    for replica in (":replica=host", ":replica=none")
]


def grid_body(rank: int, size: int) -> None:
    baseline = train(tw.shard(make_model(), parse_recipe(STOCK)), rank, 10)
    for text in GRID:
        compute = "fp32" if "compute=fp32" in text else "bf16"
        full = text if "zeropp" in text else with_other_side(text, compute)
        losses = train(tw.shard(make_model(), parse_recipe(full)), rank, 10)
        # 10 %: runs of five seeds lie within 5 % of each other
        assert sum(losses[-5:]) == pytest.approx(sum(baseline[-5:]), rel=0.1), full


def with_other_side(text: str, compute: str) -> str:
    """The direction that is not compressed travels in the dtype that computes."""
    return f"{text}:grads={compute}" if "weights=" in text else f"{text}:weights={compute}"


@pytest.mark.parametrize("per_host", [2, 4])
def test_every_mix_of_dtype_replica_and_formats_trains(per_host: int) -> None:
    """Quantized weights diverged with one dtype, the replica with another, on two hosts only."""
    run_world(grid_body, 4, ranks_per_host=per_host)


class Huge(nn.Module):
    """A weight of 1e30, far above what fp16 holds and within bf16."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(16, 16, bias=False)])
        nn.init.constant_(self.blocks[0].weight, 1e30)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.blocks[0](x)
        return out


def huge_body(rank: int, size: int, text: str) -> None:
    model = tw.shard(Huge(), parse_recipe(text))
    out = model(torch.full((2, 16), 1e-30))
    assert out.dtype == torch.bfloat16
    # int8 and bf16 hold a constant block to 1/127 and 1/256
    assert torch.allclose(out.float(), torch.full((2, 16), 16.0), rtol=0.02)
    backward(out.float().sum() * 1e30)
    (grad,) = (p.grad for p in model.parameters())
    assert grad is not None
    assert torch.allclose(whole(grad).float(), torch.tensor(2.0), rtol=0.15)  # int4: 1/7


@pytest.mark.parametrize(
    "text", ["zeropp:min_numel=0", "qsdp:min_numel=0", "thin:min_numel=0", "sdp4bit:min_numel=0"]
)
def test_huge_values_stay_finite_in_bf16(text: str) -> None:
    """Scales in fp16 turned a weight of 1e30 into infinity."""
    run_world(huge_body, 2, text)


def hook_body(rank: int, size: int) -> None:
    """Four micro-batches over five iterations, beside a user's own all-reduce."""
    runs = []
    for text in ("ddp", "ddp:grads=int8/128:exact=*"):
        model = tw.shard(make_model(), parse_recipe(text))
        assert isinstance(model, DistributedDataParallel)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        seen = []
        for step in range(5):
            with model.no_sync():
                for micro in range(3):
                    backward(token_loss(model, draw_tokens(4 * step + micro, rank)) / 4)
            loss = token_loss(model, draw_tokens(4 * step + 3, rank)) / 4
            backward(loss)
            mean = loss.detach().clone()
            dist.all_reduce(mean)  # a user's own, never compressed
            seen.append(mean.item())
            optimizer.step()
            optimizer.zero_grad()
        runs.append((seen, [p.detach().clone() for p in model.parameters()]))
    (stock_losses, stock), (losses, ours) = runs
    assert losses == stock_losses
    assert all(torch.equal(a, b) for a, b in zip(ours, stock, strict=True))


def test_the_hook_divides_once_whatever_is_accumulated() -> None:
    """Averaged by the hook and again by the wrapper: gradients a world size too small."""
    run_world(hook_body, 2)


@pytest.mark.parametrize("fmt", ["int8/128", "int4/128", "e4m3/128", "int4/128+stochastic"])
def test_the_error_of_a_sum_does_not_grow_with_the_world(fmt: str) -> None:
    """Sums requantized hop by hop lose more with every rank; the mean over 64 is as good as one."""
    numel = 4096
    packing = Packing([Segment(numel=numel, format=parse_format(fmt), name="g")])

    def error_of(world_size: int) -> float:
        generator = torch.Generator().manual_seed(0)
        total, payloads = torch.zeros(numel), []
        for rank in range(world_size):
            values = torch.randn(numel, generator=generator)
            payload = torch.empty(packing.wire_bytes, dtype=torch.uint8)
            packing.encode_into(values, payload, Key(seed=0, rank=rank))
            payloads.append(payload)
            total += values
        decoded = torch.empty(numel)
        packing.decode_sum_into(payloads, decoded)
        return float((decoded - total).norm() / math.sqrt(world_size))

    # independent errors add in squares, so the error over sqrt(W) is that of one rank; 4096 draws
    # put it within a few per cent
    assert error_of(64) <= 1.1 * error_of(1)


@pytest.mark.parametrize(
    "fmt", ["int8/128", "int4/128", "int4/128+asym", "int2/64", "e4m3/128", "e5m2/128", "bf16"]
)
def test_blocks_of_zeros_and_of_negative_numbers(fmt: str) -> None:
    """A scale taken from the largest value, not the largest magnitude, broke both."""
    packing = Packing([Segment(numel=256, format=parse_format(fmt), name="g")])
    for fill in (0.0, -3.0):
        values, decoded = torch.full((256,), fill), torch.empty(256)
        payload = torch.empty(packing.wire_bytes, dtype=torch.uint8)
        packing.encode_into(values, payload, Key())
        packing.decode_into(payload, decoded)
        # a constant block is one level; bf16 scales and e5m2 hold it to 1/8 at worst
        assert torch.allclose(decoded, values, rtol=1 / 8, atol=0)
