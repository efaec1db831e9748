"""Hangs and races that users of other sharded trainers reported; each test is one such story.

What is compared. A recipe with ``exact=*`` sends everything as it is, through every part of ours:
sockets, threads, exchanges. With two ranks the sum of two numbers does not depend on the order, so
gradients must be those of a plain model, to fp32 rounding, and those without threads, to the bit.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import thinwire as tw
from small_models import Residual, SmallModel, draw_tokens, make_model, token_loss, train
from thinwire.errors import ConfigError, RankError
from thinwire.recipes import parse_recipe
from world import run_world

LOSSLESS = "qsdp:compute=fp32:exact=*"
LOSSLESS_REPLICA = "thin:compute=fp32:replica=rank/fp32:exact=*"
LOSSLESS_DDP = "ddp:grads=int8/128:exact=*"
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
    for reentrant in (False, True):
        found = []
        for recipe in ("zero3:compute=fp32", text):
            torch.manual_seed(0)
            model = tw.shard(Recomputing(reentrant=reentrant), parse_recipe(recipe))
            for _ in range(2):
                model.zero_grad()
                two_forwards(model, rank)
                found.append(gradients(model))
        assert all(torch.equal(other, found[0]) for other in found)


@pytest.mark.parametrize("text", [LOSSLESS, LOSSLESS_REPLICA])
def test_two_forward_passes_with_recomputed_activations(text: str) -> None:
    """As above, with a forward pass of every block inside the backward pass, nested or not.

    The measure is stock FSDP2: with nested passes it reduces less than a plain model would.
    """
    run_world(recomputing_body, 2, text)


def partly_deferred_body(rank: int, size: int, text: str) -> None:
    """Some modules may be reduced beside backward and their neighbours may not."""
    model = deep_model()
    tw.shard(model, parse_recipe(text))  # the same object under FSDP2
    seen: list[bool] = []
    for block in list(model.blocks)[::2]:
        for parameter in block.parameters():
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
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


class Layers(nn.Module):
    """A stack of blocks of several widths from activations to activations."""

    def __init__(self, seed: int, num_blocks: int = 6) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.blocks = nn.ModuleList(Residual(24, 37 + i) for i in range(num_blocks))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def judge(generator: nn.Module, discriminator: nn.Module, rank: int) -> None:
    """One backward pass through a discriminator into the generator whose work it judged."""
    noise = torch.randn(8, 24, generator=torch.Generator().manual_seed(rank))
    backward((discriminator(generator(noise)) - 1).square().mean())


def two_models_body(rank: int, size: int, first: str, second: str) -> None:
    expected = []
    for other in range(size):
        plain = Layers(0), Layers(1)
        judge(*plain, other)
        expected.append(torch.cat([gradients(model) for model in plain]))
    mean = torch.stack(expected).mean(0)
    models = [
        tw.shard(Layers(seed), parse_recipe(text)) for seed, text in enumerate((first, second))
    ]
    for _ in range(6):
        for model in models:
            model.zero_grad()
        judge(models[0], models[1], rank)
        found = torch.cat([gradients(model) for model in models])
        assert (found - mean).abs().max() <= 1e-6 * mean.abs().max() * 8
        sent = [tw.ledger(model)["sent_bytes"] for model in models]
        assert min(sent) > 0


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (LOSSLESS_REPLICA, LOSSLESS_REPLICA),
        (LOSSLESS, LOSSLESS_REPLICA),
        (LOSSLESS_DDP, LOSSLESS_DDP),
    ],
)
def test_a_generator_and_its_discriminator_share_a_backward_pass(first: str, second: str) -> None:
    """Two wrapped models keep to themselves, even when both send at the same time.

    With a line of jobs per model their payloads mixed: wrong gradients when the sizes were the
    same, a dead process when they were not.
    """
    run_world(two_models_body, 2, first, second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (f"{LOSSLESS}:grads_within=fp32", LOSSLESS),
        (f"{LOSSLESS}:grads_within=fp32", f"{LOSSLESS_REPLICA}:grads_within=fp32"),
        (f"{LOSSLESS}:hybrid=true", LOSSLESS_DDP),
    ],
)
def test_so_do_they_when_one_takes_more_hops_than_the_other(first: str, second: str) -> None:
    """A second hop may be under way between the same ranks as another job's first."""
    run_world(two_models_body, 4, first, second, ranks_per_host=2)


def disagreement_body(rank: int, size: int) -> None:
    """What one rank alone would refuse, or train, is refused by all at once."""
    odd = "zeropp:replica=none:qat=int4/128" if rank == 1 else "zeropp:replica=none"
    told = r"recipe differs between ranks.*rank 0 has qat=None, rank 1 has qat='int4/128'\)"
    with pytest.raises(ConfigError, match=told):
        tw.shard(deep_model(), parse_recipe(odd))
    late = "zeropp:replica=none:seed=7" if rank == 2 else "zeropp:replica=none"
    with pytest.raises(
        ConfigError, match=r"rank\(s\) 2 differ.*rank 0 has seed=0, rank 2 has seed=7"
    ):
        tw.shard(deep_model(), parse_recipe(late))
    model = deep_model()
    next(model.parameters()).requires_grad_(rank != 1)
    told = r"list of parameters differs between ranks.* trained, rank 1 has .* frozen\)"
    with pytest.raises(ConfigError, match=told):
        tw.shard(model, parse_recipe("zeropp:replica=none"))
    model = deep_model()
    if rank == 2:
        model.register_parameter("extra", torch.nn.Parameter(torch.zeros(3)))
    told = r"rank\(s\) 2 differ.*rank 0 has .*, rank 2 has extra \[3\] torch.float32 trained\)"
    with pytest.raises(ConfigError, match=told):
        tw.shard(model, parse_recipe("zeropp:replica=none"))


def test_ranks_that_disagree_are_told_before_one_refuses_alone() -> None:
    run_world(disagreement_body, 3)


def short_group(seconds: float) -> DeviceMesh:
    """All ranks, in a group of its own that gives up after ``seconds``."""
    group = dist.new_group(timeout=timedelta(seconds=seconds))
    assert isinstance(group, dist.ProcessGroup)
    return DeviceMesh.from_group(group, "cpu")


def lost_rank_body(rank: int, size: int, text: str, how: str, has_buffers: bool) -> str:
    """The last rank leaves between two steps, or stops answering; the others end, and name it.

    A rank that leaves closes its connections, as one that was killed does.
    """
    timeout_s = 3.0
    mesh = short_group(timeout_s)
    recipe = parse_recipe(text)
    plain = deep_model()
    if has_buffers:
        plain.register_buffer("average", torch.zeros(3))
    if recipe.stage == 0:
        model: nn.Module = DistributedDataParallel(plain, process_group=mesh.get_group())
        tw.compress(model, recipe)
    else:
        model = tw.shard(plain, recipe, mesh=mesh)
    train(model, rank, 2)
    if rank == size - 1:
        if how == "hangs":
            time.sleep(2.2 * timeout_s)
        return ""
    start = time.monotonic()
    with pytest.raises(RankError, match=rf"rank {rank} waited for") as raised:
        train(model, rank, 4)
    elapsed_s = time.monotonic() - start
    time.sleep(1)  # who leaves now would be the lost rank of one that is still to notice
    assert re.search("[Cc]onnection|[Tt]imed out", str(raised.value))  # what the backend said
    # one timeout, not one for each of the nine modules; the rest is for a busy machine
    assert elapsed_s < 2 * timeout_s
    return str(raised.value)


@pytest.mark.parametrize(
    ("text", "how", "has_buffers"),
    [
        ("zero3:compute=fp32", "leaves", False),
        (INT8, "leaves", False),
        ("thin:compute=fp32", "leaves", False),
        ("ddp", "leaves", False),
        ("ddp", "leaves", True),
        ("ddp:grads=int8/128:min_numel=0", "leaves", False),
        ("ddp:grads=int8/128:min_numel=0", "leaves", True),
        ("thin:compute=fp32", "hangs", False),
        ("ddp:grads=int8/128:min_numel=0", "hangs", False),
        ("ddp:grads=int8/128:min_numel=0", "hangs", True),
        ("ddp", "hangs", False),
    ],
)
def test_a_lost_rank_ends_the_others_within_the_timeout(
    text: str, how: str, has_buffers: bool
) -> None:
    """A rank dies in the middle of a compressed exchange: an error on all others, soon."""
    first, second, _ = run_world(lost_rank_body, 3, text, how, has_buffers)
    # whoever notices first closes its connections too, and the other may be waiting for it by then;
    # a ring does not tell which of a rank's neighbours left, and with three ranks both are
    assert "rank 2 on host 2" in first + second
