"""Where residuals are: what ranks take over covers every element, with the weight it states."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thinwire.recipes import parse_recipe
from thinwire.sharding.arrangement import Arrangement
from thinwire.sharding.portions import Gradient, portions_of, rows_of

ANY = "feedback=true:compute=fp32:weights=fp32:exact=*bias:min_numel=0"
RECIPES = [
    f"ddp:grads=int4/32:{ANY}",
    f"ddp:grads=int4/32:local_steps=4:{ANY}",
    f"ddp:grads=lowrank=2:{ANY}",
    f"zero2:grads=int4/32:{ANY}",
    f"zero3:grads=int4/32:grads_within=int8/64:{ANY}",
    f"zero3:grads=fp32:grads_within=int8/64:{ANY}",
    f"hsdp:grads=int4/32:grads_within=int8/64:{ANY}",
    f"hsdp:grads=fp32:grads_within=int8/64:{ANY}",
]

shapes = st.lists(st.integers(1, 12), min_size=1, max_size=3).map(torch.Size)
names = st.sampled_from(["up.weight", "up.bias"])  # the second travels exactly


def arrange(text: str, num_hosts: int, per_host: int, divisor: float | None) -> Arrangement:
    hosts = tuple(host for host in range(num_hosts) for _ in range(per_host))
    recipe = parse_recipe(text)
    num_shards = per_host if recipe.hybrid else len(hosts)
    return Arrangement(hosts=hosts, num_shards=num_shards if recipe.stage else 1, divisor=divisor)


@pytest.mark.parametrize("text", RECIPES)
@given(
    shape=shapes,
    name=names,
    num_hosts=st.integers(1, 4),
    per_host=st.integers(1, 3),
    divisor=st.sampled_from([None, 1.0, 3.0]),
)
def test_what_is_taken_over_has_its_weight_on_every_element(
    text: str, shape: torch.Size, name: str, num_hosts: int, per_host: int, divisor: float | None
) -> None:
    arrangement = arrange(text, num_hosts, per_host, divisor if "ddp" not in text else None)
    portions = portions_of(parse_recipe(text), arrangement)
    gradient = Gradient(name=name, shape=shape)
    entering = torch.zeros(shape.numel(), dtype=torch.float64)
    for rank in range(arrangement.size):
        taken = portions.taken(gradient, rank)
        (kept,) = (p for p in portions.kept(gradient, rank) if p.part == taken.part)
        assert kept.elements == taken.elements
        entering[taken.elements.start : taken.elements.stop] += kept.weight / taken.weight
    # ones taken over enter the reduced gradient as ones
    assert torch.allclose(entering, torch.ones_like(entering))


@pytest.mark.parametrize("text", RECIPES)
def test_every_rank_keeps_a_part_of_a_name_once(text: str) -> None:
    portions = portions_of(parse_recipe(text), arrange(text, 2, 3, None))
    for rank in range(6):
        kept = list(portions.kept(Gradient(name="w", shape=torch.Size((5, 7))), rank))
        assert len({portion.part for portion in kept}) == len(kept)


@given(shape=shapes, num_shards=st.integers(1, 8))
def test_rows_are_dealt_out_as_chunks_are(shape: torch.Size, num_shards: int) -> None:
    whole = torch.arange(math.prod(shape)).view(shape)
    chunks = [chunk.flatten().tolist() for chunk in whole.chunk(num_shards)]
    chunks += [[]] * (num_shards - len(chunks))  # FSDP2 gives the last ranks nothing
    assert [list(rows_of(shape, num_shards, place)) for place in range(num_shards)] == chunks
