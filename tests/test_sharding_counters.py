"""Counters, whose steps count, and warm-up: the first gradients travel as they are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

import thinwire as tw
from small_models import draw_tokens, make_model, token_loss
from thinwire.errors import ConfigError, StateError
from thinwire.recipes import parse_recipe
from thinwire.sharding import ledger_of
from thinwire.sharding.counters import Counters
from world import run_world

WARMUP_STEPS = 2
CODED = "min_numel=0:compute=fp32"
# a recipe, and the one that it is like while it warms up
CASES = {
    f"ddp:grads=int4/128:feedback=true:{CODED}": "ddp",
    f"ddp:grads=sign/32:feedback=true:{CODED}": "ddp",
    f"ddp:grads=lowrank=2:feedback=true:{CODED}": "ddp",
    f"ddp:grads=int4/128:staleness=1:{CODED}": "ddp:staleness=1",
    f"zero2:grads=int4/128:weights=fp32:{CODED}": "zero2:weights=fp32:compute=fp32",
    f"zero3:grads=int4/128:grads_within=int8/64:weights=fp32:{CODED}": "zero3:compute=fp32",
}


def whole(gradient: Tensor | None) -> Tensor:
    assert gradient is not None
    full = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
    return full.flatten().clone()


Steps = list[tuple[Tensor, list[str], int]]


def steps_of(text: str, rank: int) -> Steps:
    """For every step the gradients, the formats they travelled in, and their bytes."""
    model = tw.shard(make_model(), parse_recipe(text))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    answers = []
    for step in range(WARMUP_STEPS + 2):
        ledger_of(model).reset()
        optimizer.zero_grad()
        token_loss(model, draw_tokens(step, rank)).backward()  # type: ignore[no-untyped-call]
        gradients = torch.cat([whole(p.grad) for p in model.parameters()])
        tw.compression_state(model)  # returns when late reductions are done
        entries = [e for e in tw.ledger(model)["collectives"] if "reduce" in e["name"]]
        formats = sorted({name for entry in entries for name in entry["formats"]})
        sent = sum(entry["within_bytes"] + entry["across_bytes"] for entry in entries)
        answers.append((gradients, formats, sent))
        optimizer.step()
    return answers


def warmup_body(rank: int, size: int) -> dict[str, tuple[Steps, Steps]]:
    return {
        text: (steps_of(f"{text}:warmup_steps={WARMUP_STEPS}", rank), steps_of(exact, rank))
        for text, exact in CASES.items()
    }


def test_the_first_steps_are_exact_and_the_ledger_shows_it() -> None:
    for answers in run_world(warmup_body, 4, ranks_per_host=2):
        for text, (warm, exact) in answers.items():
            for (gradients, formats, _), (expected, _, _) in zip(
                warm[:WARMUP_STEPS], exact, strict=False
            ):
                # sums in rank order, against those of a ring
                torch.testing.assert_close(gradients, expected, rtol=1e-5, atol=1e-7)
                assert formats == ["fp32"], text
            after = WARMUP_STEPS + text.count("staleness=1")
            assert not torch.allclose(warm[after][0], exact[after][0], rtol=1e-5, atol=1e-7)
            assert warm[WARMUP_STEPS][1] != ["fp32"]
            assert warm[WARMUP_STEPS][2] < warm[0][2]


def accumulation_body(rank: int, size: int) -> list[list[str]]:
    """Micro-batches that reduce at once are no steps."""
    recipe = parse_recipe(f"zero2:grads=int4/128:weights=fp32:warmup_steps=1:{CODED}")
    model = tw.shard(make_model(), recipe)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    seen = []
    for _ in range(2):
        ledger_of(model).reset()
        for micro in range(3):
            token_loss(model, draw_tokens(micro, rank)).backward()  # type: ignore[no-untyped-call]
        entries = {entry["name"]: entry for entry in tw.ledger(model)["collectives"]}
        seen.append(entries["reduce_scatter"]["formats"])
        optimizer.step()
    return seen


def test_only_the_optimizers_steps_count() -> None:
    for during, after in run_world(accumulation_body, 2):
        assert during == ["fp32"]
        assert "int4/128" in after


@pytest.mark.parametrize("text", ["ddp:warmup_steps=2", "zero3:compute=fp32:warmup_steps=2"])
def test_warm_up_of_what_loses_nothing_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"warmup_steps=2.*loses nothing"):
        tw.shard(make_model(), parse_recipe(text))


def test_counters_go_on_where_they_were() -> None:
    counters = Counters()
    assert [counters.count("steps"), counters.count("steps"), counters.count("passes")] == [0, 1, 0]
    resumed = Counters()
    resumed.load(counters.state())
    assert (resumed["steps"], resumed["passes"], resumed["unknown"]) == (2, 1, 0)
    counters.commit()
    counters.count("steps")
    assert (counters.count_for_good("passes"), counters.count_for_good("passes")) == (1, 2)
    counters.undo()
    assert (counters["steps"], counters["passes"]) == (2, 3)
    with pytest.raises(StateError, match="is no count"):
        resumed.load({"steps": torch.ones(2)})
