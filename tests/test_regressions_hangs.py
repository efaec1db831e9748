"""Hangs and races that users of other sharded trainers reported; each test is one such story.

What is compared. A recipe with ``exact=*`` sends everything as it is, through every part of ours:
sockets, threads, exchanges. With two ranks the sum of two numbers does not depend on the order, so
gradients must be those of a plain model, to fp32 rounding, and those without threads, to the bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import thinwire as tw
from small_models import Residual, SmallModel, draw_tokens, make_model, token_loss, train
from thinwire.recipes import parse_recipe
from world import run_world

LOSSLESS = "qsdp:compute=fp32:exact=*"
LOSSLESS_REPLICA = "thin:compute=fp32:replica=rank/fp32:exact=*"
INT8 = "qsdp:compute=fp32:min_numel=0:weights=int8/128:grads=int8/128"


def backward(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def gradients(model: nn.Module) -> Tensor:
    """All gradients, whole; a parameter without one counts as zero."""
    parts = []
    for parameter in model.parameters():
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        parts.append(getattr(grad, "full_tensor", lambda g=grad: g)().flatten())
    return torch.cat(parts)


def mean_gradients(size: int, run: Callable[[nn.Module, int], None]) -> Tensor:
    """The average over the ranks of what ``run(model, rank)`` leaves in a plain model."""
    totals = []
    for rank in range(size):
        model = make_model()
        run(model, rank)
        totals.append(gradients(model))
    return torch.stack(totals).mean(0)


def two_forwards(model: nn.Module, rank: int) -> None:
    first = token_loss(model, draw_tokens(0, rank))
    backward(first + 3 * token_loss(model, draw_tokens(1, rank)))


def two_forwards_body(rank: int, size: int, text: str) -> None:
    expected = mean_gradients(size, two_forwards)
    for overlap in (True, False):
        model = tw.shard(make_model(), parse_recipe(text), overlap=overlap)
        for _ in range(3):
            model.zero_grad()
            two_forwards(model, rank)
            # sums of a few terms of at most the largest gradient, each to 2**-23
            assert (gradients(model) - expected).abs().max() <= 1e-6 * expected.abs().max() * 8


@pytest.mark.parametrize("text", [LOSSLESS, LOSSLESS_REPLICA, "hpz:compute=fp32"])
def test_two_forward_passes_share_a_backward_pass(text: str) -> None:
    """Contrastive and consistency losses call a model twice before one backward pass.

    Every module is reduced twice in that pass. The second result is added to the first, which must
    be complete by then; elsewhere the later one overwrote the sum, or the two exchanges mixed.
    """
    run_world(two_forwards_body, 2, text)


class Recomputing(SmallModel):
    """The small model, blocks recomputed in backward."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        out: Tensor = self.head(self.norm(x))
        return out


def recomputing_body(rank: int, size: int, text: str) -> None:
    expected = mean_gradients(size, two_forwards)
    for reentrant in (False, True):
        torch.manual_seed(0)
        model = tw.shard(Recomputing(reentrant=reentrant), parse_recipe(text))
        for _ in range(2):
            model.zero_grad()
            two_forwards(model, rank)
            assert (gradients(model) - expected).abs().max() <= 1e-6 * expected.abs().max() * 8


@pytest.mark.parametrize("text", [LOSSLESS, LOSSLESS_REPLICA])
def test_two_forward_passes_with_recomputed_activations(text: str) -> None:
    """As above, with a forward pass of every block inside the backward pass, nested or not."""
    run_world(recomputing_body, 2, text)


def partly_deferred_body(rank: int, size: int, text: str) -> None:
    """Some modules may be reduced beside backward and their neighbours may not."""
    expected = mean_gradients(size, lambda m, r: backward(token_loss(m, draw_tokens(0, r))))
    model = tw.shard(deep_model(), parse_recipe(text))
    blocks = list(model.blocks)
    seen: list[bool] = []
    for block in blocks[::2]:
        for parameter in block.parameters():
            parameter.register_post_accumulate_grad_hook(
                lambda p: seen.append(bool(p.grad.to_local().isfinite().all()))
            )
    plain = deep_model()
    for other in range(size):
        backward(token_loss(plain, draw_tokens(0, other)) / size)
    expected = gradients(plain)
    for _ in range(8):
        model.zero_grad()
        backward(token_loss(model, draw_tokens(0, rank)))
        assert (gradients(model) - expected).abs().max() <= 1e-6 * expected.abs().max() * 8
    assert seen
    assert all(seen)


def deep_model() -> SmallModel:
    torch.manual_seed(0)
    model = SmallModel()
    model.blocks = nn.ModuleList(Residual(24, 37 + i) for i in range(8))
    return model


@pytest.mark.parametrize("text", [LOSSLESS, LOSSLESS_REPLICA])
def test_reductions_on_the_spot_and_beside_backward_do_not_mix(text: str) -> None:
    """A hook on some parameters makes their module wait while its neighbour's bytes are under way.

    Both exchanges are between the same ranks: without one order they take each other's payloads.
    """
    run_world(partly_deferred_body, 2, text)
