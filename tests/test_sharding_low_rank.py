"""PowerSGD: the ranks together do what one would with the mean gradient, and nothing is lost."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw
from small_models import draw_tokens, make_model, token_loss, train
from thinwire.errors import ConfigError
from thinwire.recipes import parse_recipe
from thinwire.wire.factors import start_factors
from world import run_world

RANK = 2
PLAIN = f"ddp:grads=lowrank={RANK}:min_numel=0"
FED = f"{PLAIN}:feedback=true"
MATRICES = ("embed.weight", "blocks.0.up.weight", "blocks.1.down.weight")
NUM_STEPS = 6


def gradients_by_name(model: nn.Module) -> dict[str, Tensor]:
    """Copies of all gradients, by names without DDP's prefix."""
    return {
        name.removeprefix("module."): parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def backward(model: nn.Module, rank: int, step: int = 0) -> dict[str, Tensor]:
    model.zero_grad()
    token_loss(model, draw_tokens(step, rank)).backward()  # type: ignore[no-untyped-call]
    return gradients_by_name(model)


def mean_gradients(size: int, step: int = 0) -> dict[str, Tensor]:
    model = make_model()
    for rank in range(size):
        (token_loss(model, draw_tokens(step, rank)) / size).backward()  # type: ignore[no-untyped-call]
    return gradients_by_name(model)


def first_step_body(rank: int, size: int) -> dict[str, Tensor]:
    return backward(tw.shard(make_model(), parse_recipe(PLAIN)), rank)


@pytest.mark.parametrize("size", [2, 5])
def test_it_is_one_power_step_on_the_mean_whatever_the_number_of_ranks(size: int) -> None:
    """Against the paper's algorithm with another orthonormalization, in float64."""
    mean = mean_gradients(size)
    first, *others = run_world(first_step_body, size)
    for other in others:
        assert all(torch.equal(other[name], first[name]) for name in first)
    for name, gradient in mean.items():
        expected = gradient.double()
        if gradient.dim() > 1:
            start = start_factors(RANK, gradient.shape[1], gradient.device)
            basis, _ = torch.linalg.qr(expected @ start.T.double())
            expected = basis @ (basis.T @ expected)
            assert (expected - gradient).norm() > gradient.norm() / 100  # it does lose something
        # two sums and three products in fp32
        error = (first[name] - expected).abs().max()
        assert error <= 1e-4 * gradient.abs().max(), name


def conservation_body(rank: int, size: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    model = tw.shard(make_model(), parse_recipe(FED))
    applied: dict[str, Tensor] = {}
    for step in range(NUM_STEPS):
        for name, gradient in backward(model, rank, step).items():
            applied[name] = applied.get(name, torch.zeros(())) + gradient
    return applied, tw.compression_state(model)


def test_what_was_applied_and_the_mean_residual_are_the_sum_of_the_gradients() -> None:
    size = 3
    answers = run_world(conservation_body, size)
    applied = answers[0][0]
    steps = [mean_gradients(size, step) for step in range(NUM_STEPS)]
    for name in MATRICES:
        total = torch.stack([step[name] for step in steps]).sum(0)
        residuals = [
            state[f"rank{rank}/residuals/{name}/matrix"] for rank, (_, state) in enumerate(answers)
        ]
        kept = torch.stack(residuals).mean(0).view_as(total)
        scale = max(step[name].abs().max().item() for step in steps)
        # a few roundings a step, of values a few times the largest gradient
        assert (applied[name] + kept - total).abs().max() <= 1e-5 * scale
        assert (applied[name] - total).abs().max() > 1e-2 * scale  # the residual is needed


def warm_start_body(rank: int, size: int) -> list[float]:
    model = tw.shard(make_model(), parse_recipe(PLAIN))
    truth = mean_gradients(size)
    errors = []
    for _ in range(8):
        gradients = backward(model, rank)
        errors.append(max(_excess(gradients[name], truth[name]) for name in MATRICES))
    return errors


def _excess(approximation: Tensor, truth: Tensor) -> float:
    """The error as a multiple of the best that any matrix of this rank has."""
    best = torch.linalg.svdvals(truth)[RANK:].norm()
    return float((approximation - truth).norm() / best)


def test_the_kept_factor_turns_towards_the_best_approximation() -> None:
    errors = run_world(warm_start_body, 2)[0]
    # power iteration, one step at a time: seen 1.22, then 1.001
    assert errors[0] > 1.02
    assert errors[-1] < 1.01


def bits_body(rank: int, size: int, bucket_mb: float, overlap: bool) -> list[dict[str, Tensor]]:
    model = DistributedDataParallel(make_model(), bucket_cap_mb=bucket_mb)
    tw.compress(model, parse_recipe(FED), overlap=overlap)
    # DDP rebuilds its buckets after the first
    return [backward(model, rank, step) for step in range(4)]


def test_residuals_and_factors_do_not_depend_on_buckets_or_overlap() -> None:
    settings = [(1e-3, True), (25.0, True), (25.0, False)]
    answers = [answer for case in settings for answer in run_world(bits_body, 2, *case)]
    for answer in answers:
        for step, gradients in enumerate(answer):
            for name, gradient in gradients.items():
                assert torch.equal(gradient, answers[0][step][name])


def accumulation_body(rank: int, size: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Four micro-batches a step, three of them without communication, and all in one go."""
    parted, whole = (tw.shard(make_model(), parse_recipe(FED)) for _ in range(2))
    assert isinstance(parted, DistributedDataParallel)
    for step in range(3):
        parted.zero_grad()
        whole.zero_grad()
        with parted.no_sync():
            for micro in range(3):
                loss = token_loss(parted, draw_tokens(4 * step + micro, rank)) / 4
                loss.backward()  # type: ignore[no-untyped-call]
        (token_loss(parted, draw_tokens(4 * step + 3, rank)) / 4).backward()  # type: ignore[no-untyped-call]
        tokens = torch.cat([draw_tokens(4 * step + micro, rank) for micro in range(4)])
        token_loss(whole, tokens).backward()  # type: ignore[no-untyped-call]
    return gradients_by_name(parted), gradients_by_name(whole)


def test_accumulation_feeds_back_once_a_step() -> None:
    for parted, whole in run_world(accumulation_body, 2):
        for name, gradient in whole.items():
            # the same mean but for fp32 rounding, which no level magnifies here
            assert (parted[name] - gradient).abs().max() <= 1e-4 * gradient.abs().max()


def bytes_body(rank: int, size: int) -> dict[str, int | list[str]]:
    model = tw.shard(make_model(), parse_recipe(FED))
    train(model, rank, 1)
    entries = {entry["name"]: entry for entry in tw.ledger(model)["collectives"]}
    assert set(entries) == {"reduce_scatter", "all_gather"}
    return {
        "sent": tw.ledger(model)["sent_bytes"],
        "bf16": tw.ledger(model)["bf16_bytes"],
        "formats": entries["reduce_scatter"]["formats"],
    }


def test_bytes_are_those_of_the_factors() -> None:
    size = 2
    model = make_model()
    exact = sum(p.numel() for p in model.parameters() if p.dim() < 2)
    factors = sum(RANK * sum(p.shape) for p in model.parameters() if p.dim() == 2)
    numel = sum(p.numel() for p in model.parameters())
    for answer in run_world(bytes_body, size):
        # of two ranks each sends half of a sum and half of the result; halves are rounded up
        assert abs(int(str(answer["sent"])) - 4 * (exact + factors)) <= 2 * 4 * 2 * 16
        assert abs(int(str(answer["bf16"])) - 2 * numel) <= 2 * 2 * 16
        assert answer["formats"] == ["fp32", f"lowrank={RANK}"]


class Odd(nn.Module):
    """A convolution, a matrix whose gradient may be zero, and one smaller than its factors."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv2d(3, 16, 3)
        self.idle = nn.Linear(16, 16)
        self.tiny = nn.Linear(3, 2)
        self.last = nn.Linear(16, 3)

    def forward(self, x: Tensor, share: float) -> Tensor:
        x = self.convolution(x).mean((2, 3))
        x = x + share * self.idle(x)
        out: Tensor = self.tiny(self.last(x))
        return out


def odd_body(rank: int, size: int, dtype: torch.dtype) -> list[dict[str, Tensor]]:
    model = DistributedDataParallel(Odd().to(dtype))
    tw.compress(model, parse_recipe(FED))
    answers = []
    for step in range(3):
        model.zero_grad()
        x = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(10 * step + rank))
        model(x.to(dtype), float(step == 2)).square().sum().backward()
        answers.append(gradients_by_name(model))
    return answers


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_odd_shapes_and_a_gradient_that_begins_at_zero(dtype: torch.dtype) -> None:
    for answer in run_world(odd_body, 3, dtype):
        for gradients in answer:
            assert all(gradient.isfinite().all() for gradient in gradients.values())
            values = torch.linalg.svdvals(gradients["convolution.weight"].float().flatten(1))
            # two factors, and what rounding to 16 bits adds
            assert values[2] < values[0] * 4 * torch.finfo(dtype).eps
        assert not answer[1]["idle.weight"].any()
        # a factor that followed the zeros would be zero for ever
        assert answer[2]["idle.weight"].norm() > 0
        assert torch.linalg.matrix_rank(answer[0]["tiny.weight"].float()) == 2


def poison_body(rank: int, size: int) -> list[dict[str, Tensor]]:
    model = tw.shard(make_model(), parse_recipe(FED))
    before = backward(model, rank)
    model.zero_grad()
    factor = torch.nan if rank == 1 else 1.0
    (factor * token_loss(model, draw_tokens(0, rank))).backward()  # type: ignore[no-untyped-call]
    return [before, gradients_by_name(model), backward(model, rank)]


def test_a_step_that_is_not_finite_is_seen_by_all_and_remembered_by_none() -> None:
    answers = run_world(poison_body, 2)
    for name in MATRICES:
        (_, spoiled, after), (_, also_spoiled, other) = (
            [step[name] for step in answer] for answer in answers
        )
        assert spoiled.isnan().all()
        assert also_spoiled.isnan().all()
        assert after.isfinite().all()
        assert torch.equal(after, other)


def training_body(rank: int, size: int, text: str) -> Tensor:
    model = tw.shard(make_model(), parse_recipe(text))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(60):
        backward(model, rank, step)
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_training_stays_close_to_the_exact_path_with_feedback() -> None:
    exact, fed, forgotten = (run_world(training_body, 2, t)[0] for t in ("ddp", FED, PLAIN))
    assert (fed - exact).norm() < (forgotten - exact).norm() / 2


@pytest.mark.parametrize("stage", [2, 3])
def test_sharded_stages_refuse_it(stage: int) -> None:
    with pytest.raises(ConfigError, match="use stage=0"):
        tw.shard(make_model(), parse_recipe(f"zero{stage}:grads=lowrank=4"))


def local_body(rank: int, size: int, text: str) -> Tensor:
    model = tw.shard(make_model(), parse_recipe(f"{text}:local_steps=2"))
    train(model, rank, 4)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_pseudo_gradients_of_local_steps_may_be_factored_too() -> None:
    (exact, _), (one, other), (closer, _) = (
        run_world(local_body, 2, text) for text in ("ddp", FED, FED.replace("=2", "=9", 1))
    )
    assert torch.equal(one, other)
    assert (closer - exact).norm() < (one - exact).norm()
    assert not torch.equal(closer, exact)
