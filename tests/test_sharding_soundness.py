"""Every entry of a good state, damaged in turn, is refused on all ranks or does no harm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import thinwire as tw
from small_models import draw_tokens, make_model, token_loss
from thinwire.errors import StateError
from thinwire.recipes import parse_recipe
from world import run_world

# only the matrices of the two blocks are compressed: enough for every kind of entry
FEW = "min_numel=888:compute=fp32:exact=embed*"
RECIPES = [
    f"zero3:grads=int4/128:feedback=true:{FEW}",
    f"zero3:grads=int4/128:feedback=true:residual=int8/128:staleness=1:{FEW}",
    f"thin:grads=int4/128:feedback=true:{FEW}",
    f"zero3:grads=int4/128:adaptive_bits=5:{FEW}",
    f"ddp:grads=lowrank=2:feedback=true:{FEW}",
    f"ddp:grads=int4/128:staleness=1:{FEW}",
    f"ddp:grads=int4/128:local_steps=2:{FEW}",
]


def other_dtype(tensor: Tensor) -> Tensor:
    return tensor.to(torch.int32 if tensor.is_floating_point() else torch.float64) + 0


def nan(tensor: Tensor) -> Tensor:
    return torch.full_like(tensor, torch.nan) if tensor.is_floating_point() else tensor * 0 - 1


DAMAGES: dict[str, Callable[[Tensor], Any] | None] = {
    "missing": None,
    "truncated": lambda tensor: tensor.flatten()[:-1],
    "longer": lambda tensor: torch.cat([tensor.flatten(), tensor.flatten()]),
    "of another dtype": other_dtype,
    "not a number": nan,
    "negative": lambda tensor: -1 - tensor.abs() if tensor.is_floating_point() else ~tensor,
    "no tensor": lambda tensor: tensor.tolist(),
}
FINITE = ("residuals", "late", "factors", "outer")


def take_step(model: nn.Module, rank: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    token_loss(model, draw_tokens(0, rank)).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()


def copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {entry: tensor.clone() for entry, tensor in state.items()}


def is_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(t, other[e]) for e, t in one.items())


def is_finite(model: nn.Module) -> bool:
    values = [p.to_local() if isinstance(p, DTensor) else p for p in model.parameters()]
    return all(bool(value.isfinite().all()) for value in values)


def damaged(
    state: dict[str, Tensor], entry: str, damage: Callable[[Tensor], Any] | None
) -> dict[str, Tensor]:
    rest = {name: tensor for name, tensor in state.items() if name != entry}
    return rest if damage is None else rest | {entry: damage(state[entry])}


def cases(state: dict[str, Tensor]) -> Iterator[tuple[str, str, bool]]:
    """Entries of rank 0, what happens to each, and whether it happens on rank 0 alone."""
    listed = [sorted(state)]
    dist.broadcast_object_list(listed, src=0)
    for entry in listed[0]:
        for name in DAMAGES:
            yield entry, name, True
            if entry.startswith("shared/"):
                yield entry, name, False


def damage_body(rank: int, size: int, text: str) -> tuple[int, list[tuple[str, str, bool]]]:
    """How many damages were refused, and which were accepted."""
    model = tw.shard(make_model(), parse_recipe(text))
    for _ in range(3):
        take_step(model, rank)
    good = copied(tw.compression_state(model))
    tw.load_compression_state(model, good)
    num_refused, accepted = 0, []
    for entry, name, is_alone in cases(good):
        is_mine = rank == 0 or not is_alone
        bad = damaged(good, entry, DAMAGES[name]) if is_mine else good
        try:
            tw.load_compression_state(model, bad)
        except StateError:
            num_refused += 1
            assert is_same(tw.compression_state(model), good), (entry, name)
            continue
        accepted.append((entry, name, is_alone))
        take_step(model, rank)
        assert is_finite(model), (entry, name)
        tw.load_compression_state(model, good)
    return num_refused, accepted


@pytest.mark.parametrize("text", RECIPES)
def test_damage_is_refused_everywhere_or_harmless(text: str) -> None:
    answers = run_world(damage_body, 2, text)
    assert answers[0] == answers[1]
    num_refused, accepted = answers[0]
    assert num_refused > len(accepted) > 0
    for entry, name, is_alone in accepted:
        assert name != "no tensor"
        # what is equal on all ranks stays so
        assert not (entry.startswith("shared/") and is_alone), (entry, name)
        is_relied_on = entry.split("/")[1] in FINITE
        assert not (is_relied_on and name in ("not a number", "truncated", "longer")), entry
