"""All ranks skip a step together, or none does (a NaN in one rank's shard must not part them)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import thinwire as tw
from small_models import draw_tokens, make_model, token_loss
from thinwire.errors import ConfigError, RankError
from thinwire.recipes import parse_recipe
from thinwire.train.finite import FiniteCheck, _largest_magnitude
from world import run_world

WORLD = 3


def agree(
    gradient: Tensor, *, loss: float = 1.0, check: FiniteCheck | None = None
) -> tuple[int, ...]:
    chosen = check or FiniteCheck()
    return chosen.agree(torch.tensor(loss), [torch.ones(3), gradient]).refusing_ranks


def decisions_body(rank: int, size: int) -> None:
    assert agree(torch.ones(4)) == ()
    # only rank 1 sees it, all decide the same
    assert agree(torch.tensor([1.0, math.nan if rank == 1 else 1.0])) == (1,)
    assert agree(torch.tensor([-math.inf if rank == 2 else 1.0])) == (2,)
    assert agree(torch.ones(1), loss=math.nan if rank == 0 else 1.0) == (0,)
    assert agree(torch.ones(1), loss=math.inf) == (0, 1, 2)
    # finite, though its sum and its square are not
    assert agree(torch.full((10,), 3e38)) == ()
    # an empty shard says nothing
    assert agree(torch.empty(0)) == ()
    assert agree(torch.tensor([math.nan if rank == 1 else 1.0], dtype=torch.bfloat16)) == (1,)


def test_all_ranks_decide_the_same() -> None:
    run_world(decisions_body, WORLD)


def mean_body(rank: int, size: int) -> float:
    return FiniteCheck().agree(torch.tensor(float(rank)), []).mean_loss


def test_the_loss_is_averaged_over_ranks() -> None:
    assert run_world(mean_body, WORLD) == [1.0, 1.0, 1.0]


def limit_body(rank: int, size: int) -> str:
    check = FiniteCheck(max_skips=2)
    bad = torch.tensor([math.nan if rank == 1 else 1.0])
    for _ in range(2):
        agree(bad, check=check)
    assert agree(torch.ones(1), check=check) == ()  # a good step forgives
    for _ in range(2):
        agree(bad, check=check)
    with pytest.raises(RankError) as raised:
        agree(bad, check=check)
    return str(raised.value)


def test_too_many_skips_in_a_row_end_all_ranks_with_the_same_words() -> None:
    words = set(run_world(limit_body, WORLD))
    assert len(words) == 1
    assert "3 steps in a row" in (text := words.pop())
    assert "rank 1" in text


NUMBERS = (0.0, -3.5, 1e-30, 1e30, math.inf, -math.inf, math.nan)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.complex64])
def test_what_is_finite_is_told_exactly(dtype: torch.dtype) -> None:
    empty = torch.zeros(0, 4, dtype=dtype)
    for number in NUMBERS:
        gradients = [torch.tensor([1.0, number, -2.0]).to(dtype), empty, torch.zeros(2)]
        largest = _largest_magnitude(gradients, torch.device("cpu"))
        assert bool(largest.isfinite()) == math.isfinite(number), number
        alone = _largest_magnitude([torch.tensor([number]).to(dtype)], torch.device("cpu"))
        assert bool(alone != 0) == (number != 0.0), number


def test_doubles_beyond_floats_are_finite() -> None:
    huge, tiny = (torch.tensor([x], dtype=torch.float64) for x in (1e300, 1e-300))
    assert _largest_magnitude([huge], torch.device("cpu")).isfinite()
    assert _largest_magnitude([tiny], torch.device("cpu")) != 0


def zeros_body(rank: int, size: int) -> str:
    check = FiniteCheck(max_zeros=2)

    def step(value: float) -> None:
        check.agree(torch.tensor(1.0), [torch.zeros(3), torch.tensor([value])])

    for _ in range(4):  # one rank has a gradient: the step is not empty
        step(1e-30 if rank == 2 else 0.0)
    for _ in range(2):
        step(0.0)
    step(math.nan if rank == 0 else 0.0)  # not finite is not zero
    for _ in range(2):
        step(0.0)
    with pytest.raises(RankError) as raised:
        step(0.0)
    return str(raised.value)


def test_gradients_of_nothing_but_zeros_end_all_ranks_with_the_same_words() -> None:
    (words,) = set(run_world(zeros_body, WORLD))
    assert "exactly 0 for 3 steps in a row" in words


def shard_body(rank: int, size: int, recipe: str) -> tuple[bool, tuple[int, ...]]:
    """A NaN that reaches one rank's shard only: after the reduction, as a broken link would."""
    model = tw.shard(make_model(), parse_recipe(recipe))
    torch.autograd.backward(token_loss(model, draw_tokens(0, rank)))
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    check = FiniteCheck()
    before = check.agree(torch.tensor(1.0), gradients).take_step
    if rank == 1:
        local = next(
            local
            for gradient in gradients
            if (local := getattr(gradient, "to_local", lambda g=gradient: g)()).numel()
        )
        local.view(-1)[0] = math.nan
    return before, check.agree(torch.tensor(1.0), gradients).refusing_ranks


@pytest.mark.parametrize("recipe", ["zero3:compute=fp32", "ddp:compute=fp32"])
def test_a_nan_in_one_shard_is_everybodys(recipe: str) -> None:
    for before, refusing in run_world(shard_body, 2, recipe):
        assert before
        assert refusing == (1,)


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(ConfigError, match="below 0"):
        FiniteCheck(max_skips=-1)
