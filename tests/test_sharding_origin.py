"""A state of a recipe that remembers other things is refused on every rank, before a step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from small_models import draw_tokens, make_model, token_loss
from thinwire.errors import StateError
from thinwire.recipes import parse_recipe
from world import run_world

FED_BACK = "min_numel=0:compute=fp32:feedback=true"
INT4 = f"grads=int4/128:{FED_BACK}"
ADAPTIVE = "adaptive_bits=5:min_numel=0"

# the recipe that saved, the one that loads, and what the error names
REFUSED = [
    (f"zero3:{INT4}", f"hsdp:{INT4}", "hybrid"),
    (f"zero3:{INT4}", f"zero3:{INT4}:grads_within=int8/128", "two hops"),
    (f"zero3:{INT4}", f"ddp:{INT4}", "stage"),
    (f"ddp:{INT4}", f"zero3:{INT4}", "stage"),
    (f"ddp:{INT4}", f"ddp_powersgd:{FED_BACK}", "grads"),
    (f"ddp_powersgd:{FED_BACK}", f"ddp:{INT4}", "grads"),
    (f"ddp_powersgd:{FED_BACK}", f"ddp_powersgd:grads=lowrank=8:{FED_BACK}", "grads"),
    (f"zero3:{INT4}", f"zero3:{INT4}:exact=*up*", "exact"),
    (f"zero3:{INT4}:residual=int8/128", f"zero3:{INT4}", "residual"),
    (f"zero3:grads=int4/128:{ADAPTIVE}", f"zero3:grads=log4/128:{ADAPTIVE}", "grads"),
    ("zero3:staleness=1:min_numel=0", "ddp:staleness=1:min_numel=0:grads=int4/128", "stage"),
    # nothing is remembered but counters, and how parameters are cut
    ("zero3:grads=int4/128", "ddp:grads=int4/128", "rows of parameters"),
    (f"zero3:{INT4}", "zero3:grads=int4/128:min_numel=0:compute=fp32", "has no use"),
]
# what may change from run to run
ACCEPTED = [
    ("zero3:grads=int4/128", "zero3:grads=int8/128"),
    ("zero3:grads=int4/128", f"zero3:{INT4}"),
    (f"zero3:{INT4}", f"zero3:{INT4}:weights=int8/128"),
    (f"zero2:{INT4}", f"zero3:{INT4}"),
    (f"zero3:{INT4}", f"zero3:{INT4}:residual=bf16"),
]


def train(model: nn.Module, rank: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(2):
        token_loss(model, draw_tokens(step, rank)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()


def made_by(text: str, rank: int) -> dict[str, Tensor]:
    model = tw.shard(make_model(), parse_recipe(text))
    train(model, rank)
    return tw.compression_state(model)


def other_recipes_body(rank: int, size: int) -> None:
    for saved, present, named in REFUSED:
        state = made_by(saved, rank)
        model = tw.shard(make_model(), parse_recipe(present))
        with pytest.raises(StateError, match=named):
            tw.load_compression_state(model, state)
    for saved, present in ACCEPTED:
        state = made_by(saved, rank)
        model = tw.shard(make_model(), parse_recipe(present))
        tw.load_compression_state(model, state)
        train(model, rank)


def test_only_a_state_of_what_the_recipe_remembers_is_loaded() -> None:
    run_world(other_recipes_body, 2)
