"""DDP's hook: one average, whatever the buckets, with accumulation and unused parameters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw
from small_models import SmallModel, draw_tokens, make_model, token_loss, train
from thinwire.errors import ConfigError
from thinwire.recipes import parse_recipe
from world import run_world

INT8 = "ddp:grads=int8/128:min_numel=0"


def gradients(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def average_by_hand(size: int, micro_batches: int = 1) -> Tensor:
    model = make_model()
    for rank in range(size):
        for micro in range(micro_batches):
            loss = token_loss(model, draw_tokens(micro, rank)) / (size * micro_batches)
            loss.backward()  # type: ignore[no-untyped-call]
    return gradients(model)


def average_body(rank: int, size: int, bucket_mb: float) -> Tensor:
    model = DistributedDataParallel(make_model(), bucket_cap_mb=bucket_mb)
    tw.compress(model, parse_recipe(INT8))
    for _ in range(2):  # DDP rebuilds its buckets after the first iteration
        model.zero_grad()
        token_loss(model, draw_tokens(0, rank)).backward()  # type: ignore[no-untyped-call]
    return gradients(model)


@pytest.mark.parametrize("size", [2, 3])
def test_the_hook_averages_whatever_the_buckets(size: int) -> None:
    tiny, large = (run_world(average_body, size, mb) for mb in (1e-3, 25.0))
    for answer in (*tiny, *large):
        assert torch.equal(answer, tiny[0])  # all ranks, all bucket sizes: the same bits
    expected = average_by_hand(size)
    # int8 there and back: two roundings of at most half a step of 1/127
    assert (tiny[0] - expected).abs().max() <= expected.abs().max() / 64
    assert not torch.equal(tiny[0], expected)


def overlap_body(rank: int, size: int) -> list[list[float]]:
    recipe = parse_recipe("ddp:grads=int4/128+stochastic:min_numel=0")
    return [
        train(tw.shard(make_model(), recipe, overlap=overlap), rank, 5) for overlap in (True, False)
    ]


def test_overlap_changes_no_number() -> None:
    for beside, on_the_spot in run_world(overlap_body, 3):
        assert beside == on_the_spot


def accumulation_body(rank: int, size: int) -> Tensor:
    model = tw.shard(make_model(), parse_recipe(INT8))
    assert isinstance(model, DistributedDataParallel)
    with model.no_sync():
        for micro in range(3):
            (token_loss(model, draw_tokens(micro, rank)) / 4).backward()  # type: ignore[no-untyped-call]
    assert tw.ledger(model)["sent_bytes"] == 0
    (token_loss(model, draw_tokens(3, rank)) / 4).backward()  # type: ignore[no-untyped-call]
    return gradients(model)


def test_accumulation_is_averaged_once() -> None:
    expected = average_by_hand(2, micro_batches=4)
    for answer in run_world(accumulation_body, 2):
        assert (answer - expected).abs().max() <= expected.abs().max() / 64


def bytes_body(rank: int, size: int, text: str) -> tuple[int, int]:
    model = tw.shard(make_model(), parse_recipe(text))
    train(model, rank, 3)
    return tw.ledger(model)["sent_bytes"], sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("size", [2, 3])
def test_stock_bytes_are_those_of_a_ring(size: int) -> None:
    for sent, numel in run_world(bytes_body, size, "ddp"):
        # each of the few calls rounds to whole bytes
        assert sent == pytest.approx(3 * 2 * (size - 1) / size * 4 * numel, abs=9)


def test_compressed_bytes_are_those_of_the_format() -> None:
    for sent, numel in run_world(bytes_body, 2, "ddp:grads=int4/128:min_numel=0:exact=none"):
        # 4.25 bits an element when blocks are full; this model's small parameters double it
        assert 3 * numel * 4.25 / 8 < sent < 3 * numel * 8.5 / 8


class Sometimes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.always = nn.Linear(16, 16)
        self.sometimes = nn.Linear(16, 16)

    def forward(self, x: Tensor, everything: bool) -> Tensor:
        x = self.always(x)
        out: Tensor = self.sometimes(x) if everything else x
        return out


def unused_body(rank: int, size: int) -> None:
    model = DistributedDataParallel(Sometimes(), find_unused_parameters=True)
    tw.compress(model, parse_recipe(INT8))
    for step in range(3):
        model(torch.ones(2, 16), everything=rank == 0 or step == 2).sum().backward()


def test_a_rank_may_leave_parameters_unused() -> None:
    run_world(unused_body, 2)


def frozen_body(rank: int, size: int) -> None:
    """What has no gradient is of no account, whatever its dtype."""
    model = make_model()
    codes = torch.zeros(4, dtype=torch.uint8)
    model.register_parameter("codes", nn.Parameter(codes, requires_grad=False))
    sharded = tw.shard(model, parse_recipe(INT8))
    token_loss(sharded, draw_tokens(0, rank)).backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None for p in sharded.parameters() if p.requires_grad)


def test_frozen_parameters_of_any_dtype_are_left_alone() -> None:
    run_world(frozen_body, 2)


def refusal_body(rank: int, size: int) -> None:
    model = DistributedDataParallel(make_model())
    with pytest.raises(ConfigError, match="must have stage=0"):
        tw.compress(model, parse_recipe("qsdp"))
    with pytest.raises(ConfigError, match="cannot be compressed"):
        tw.shard(make_model().double(), parse_recipe(INT8))
    with pytest.raises(ConfigError, match="blocks and mesh"):
        tw.shard(SmallModel(), parse_recipe("ddp"), blocks=[])


def test_a_recipe_for_another_wrapper_is_refused() -> None:
    run_world(refusal_body, 2)


def conservation_body(
    rank: int, size: int, text: str
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The sum of what some steps applied, by parameter, and what is still owed."""
    model = tw.shard(make_model(), parse_recipe(text))
    applied: dict[str, Tensor] = {}
    for step in range(4):
        model.zero_grad()
        token_loss(model, draw_tokens(step, rank)).backward()  # type: ignore[no-untyped-call]
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            plain = name.removeprefix("module.")
            applied[plain] = applied.get(plain, torch.zeros(())) + parameter.grad.flatten()
    return applied, tw.compression_state(model)


@pytest.mark.parametrize("fmt", ["topk=0.1", "sign/32"])
def test_what_was_applied_and_what_is_owed_are_the_sum_of_the_gradients(fmt: str) -> None:
    size = 3
    answers = run_world(conservation_body, size, f"ddp:grads={fmt}:feedback=true:min_numel=0")
    truth = make_model()
    for step in range(4):
        for rank in range(size):
            (token_loss(truth, draw_tokens(step, rank)) / size).backward()  # type: ignore[no-untyped-call]
    for name, parameter in truth.named_parameters():
        gradient = parameter.grad
        if gradient is None or gradient.dim() < 2:
            continue
        # what every rank lost of its contributions, and what each lost of its slice of the result
        owed = torch.zeros(gradient.numel())
        start = 0
        for owner in range(size):
            result = answers[owner][1][f"rank{owner}/residuals/{name}/result"]
            stop = start + len(result)
            owed[start:stop] += result
            for rank, (_, state) in enumerate(answers):
                owed[start:stop] += state[f"rank{rank}/residuals/{name}/to {owner}"] / size
            start = stop
        assert start == gradient.numel()
        total = gradient.flatten()
        applied = answers[0][0][name]
        # a few roundings a step, of values a few times the largest gradient
        assert (applied + owed - total).abs().max() <= 1e-5 * total.abs().max()
        assert (applied - total).abs().max() > 1e-2 * total.abs().max()
