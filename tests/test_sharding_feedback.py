"""Error feedback in every socket: what one step loses arrives in a later one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw
from small_models import draw_tokens, make_model, token_loss
from thinwire.errors import ConfigError
from thinwire.recipes import parse_recipe
from world import run_world

NUM_STEPS = 16
INT4 = "grads=int4/128:min_numel=0:compute=fp32"
CASES = [
    (f"ddp:{INT4}", 1),
    (f"zero2:{INT4}:weights=fp32", 1),
    (f"zero3:{INT4}:weights=fp32", 1),
    (f"zero3:{INT4}:weights=fp32:grads_within=int4/64", 2),
]


def gradients(model: nn.Module) -> Tensor:
    """All gradients, whole, in the order of the parameters' names."""
    whole = []
    for _, parameter in sorted(model.named_parameters(), key=_plain_name):
        gradient = parameter.grad
        if gradient is not None:
            full = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
            whole.append(full.flatten().clone())
    return torch.cat(whole)


def _plain_name(item: tuple[str, nn.Parameter]) -> str:
    return item[0].removeprefix("module.")


def backward(model: nn.Module, rank: int, step: int = 0) -> Tensor:
    model.zero_grad()
    token_loss(model, draw_tokens(step, rank)).backward()  # type: ignore[no-untyped-call]
    return gradients(model)


def average_by_hand(size: int) -> Tensor:
    model = make_model()
    for rank in range(size):
        (token_loss(model, draw_tokens(0, rank)) / size).backward()  # type: ignore[no-untyped-call]
    return gradients(model)


def mean_body(rank: int, size: int, text: str) -> list[Tensor]:
    """The mean of what the same step gives again and again: without and with feedback."""
    means = []
    for feedback in ("false", "true"):
        model = tw.shard(make_model(), parse_recipe(f"{text}:feedback={feedback}"))
        means.append(sum((backward(model, rank) for _ in range(NUM_STEPS)), torch.zeros(())))
    return [mean / NUM_STEPS for mean in means]


@pytest.mark.parametrize(("text", "per_host"), CASES)
def test_the_mean_of_many_steps_approaches_the_true_gradient(text: str, per_host: int) -> None:
    size = 2 * per_host
    expected = average_by_hand(size)
    for without, remembered in run_world(mean_body, size, text, ranks_per_host=per_host):
        plain_error = (without - expected).abs().max()
        # What is missing of the sum is one step's loss, whatever the number of steps; residuals
        # may make that loss twice as large, and two encodings in a row have one each.
        assert (remembered - expected).abs().max() <= 4 * plain_error / NUM_STEPS
        assert plain_error > 0


def bits_body(rank: int, size: int, bucket_mb: float, overlap: bool) -> Tensor:
    model = DistributedDataParallel(make_model(), bucket_cap_mb=bucket_mb)
    recipe = parse_recipe("ddp:grads=int4/128+stochastic:min_numel=0:feedback=true")
    tw.compress(model, recipe, overlap=overlap)
    # DDP rebuilds its buckets after the first
    return torch.stack([backward(model, rank, step) for step in range(4)])


def test_residuals_do_not_depend_on_buckets_or_overlap() -> None:
    settings = [(1e-3, True), (25.0, True), (25.0, False)]
    answers = [answer for case in settings for answer in run_world(bits_body, 2, *case)]
    for answer in answers:
        assert torch.equal(answer, answers[0])


def accumulation_body(rank: int, size: int) -> tuple[Tensor, Tensor]:
    """Four micro-batches a step, three of them without communication, and all in one go."""
    recipe = parse_recipe(f"ddp:{INT4}:feedback=true")
    parted, whole = (tw.shard(make_model(), recipe) for _ in range(2))
    assert isinstance(parted, DistributedDataParallel)
    for step in range(3):
        parted.zero_grad()
        with parted.no_sync():
            for micro in range(3):
                loss = token_loss(parted, draw_tokens(4 * step + micro, rank)) / 4
                loss.backward()  # type: ignore[no-untyped-call]
        (token_loss(parted, draw_tokens(4 * step + 3, rank)) / 4).backward()  # type: ignore[no-untyped-call]
        tokens = torch.cat([draw_tokens(4 * step + micro, rank) for micro in range(4)])
        whole.zero_grad()
        token_loss(whole, tokens).backward()  # type: ignore[no-untyped-call]
    return gradients(parted), gradients(whole)


def test_accumulation_feeds_back_once_a_step() -> None:
    for parted, whole in run_world(accumulation_body, 2):
        # the same mean but for fp32 rounding, which may move an element to the next of 15 levels
        assert (parted - whole).abs().max() <= whole.abs().max() / 3
        close = (parted - whole).abs() <= 1e-6
        assert close.float().mean() > 0.98


def poison_body(rank: int, size: int) -> tuple[bool, bool, Tensor]:
    model = tw.shard(make_model(), parse_recipe(f"ddp:{INT4}:feedback=true"))
    backward(model, rank)
    model.zero_grad()
    factor = torch.nan if rank == 1 else 1.0
    (factor * token_loss(model, draw_tokens(0, rank))).backward()  # type: ignore[no-untyped-call]
    spoiled = gradients(model)
    after = backward(model, rank)
    return bool(spoiled.isfinite().all()), bool(after.isfinite().all()), after


def test_a_step_that_is_not_finite_is_seen_by_all_and_remembered_by_none() -> None:
    (spoiled, recovered, one), (also_spoiled, also_recovered, other) = run_world(poison_body, 2)
    assert (spoiled, also_spoiled) == (False, False)
    assert (recovered, also_recovered) == (True, True)
    assert torch.equal(one, other)


def frozen_body(rank: int, size: int, text: str) -> tuple[Tensor, Tensor]:
    """A parameter's next gradients, with and without a frozen spell in between."""
    answers = []
    for freeze in (False, True):
        model = tw.shard(make_model(), parse_recipe(f"{text}:feedback=true"))
        for _ in range(3):
            backward(model, rank)
        if freeze:
            weight = model.get_parameter("blocks.0.up.weight")
            weight.requires_grad_(False)
            backward(model, rank)
            weight.requires_grad_(True)
        backward(model, rank)
        gradient = model.get_parameter("blocks.0.up.weight").grad
        assert isinstance(gradient, DTensor)
        answers.append(gradient.full_tensor())
    return answers[0], answers[1]


def test_a_frozen_parameter_keeps_its_residual() -> None:
    for through, frozen in run_world(frozen_body, 2, CASES[1][0]):
        assert torch.equal(through, frozen)


def training_body(rank: int, size: int, text: str) -> Tensor:
    """Weights after SGD, whose steps add up, so that what is carried over is not lost."""
    model = tw.shard(make_model(), parse_recipe(text))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for step in range(60):
        backward(model, rank, step)
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_training_stays_close_to_the_exact_path_with_feedback() -> None:
    coarse = f"ddp:{INT4}".replace("int4/128", "int2/128")
    texts = ("ddp", f"{coarse}:feedback=true", coarse)
    exact, remembered, forgotten = (run_world(training_body, 2, text)[0] for text in texts)
    # with feedback the paths differ by a step's loss, without by the losses of 60 steps
    assert (remembered - exact).norm() < (forgotten - exact).norm() / 3


@pytest.mark.parametrize("text", ["ddp:feedback=true", "zero3:compute=fp32:feedback=true"])
def test_feedback_on_what_loses_nothing_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="grads=fp32 loses nothing"):
        tw.shard(make_model(), parse_recipe(text))
