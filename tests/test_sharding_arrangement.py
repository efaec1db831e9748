"""Arrangements of ranks go into a state and come out of it as they were."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard

import thinwire as tw
from thinwire.comm.ledger import Ledger
from thinwire.comm.topology import Topology
from thinwire.errors import StateError
from thinwire.recipes import parse_recipe
from thinwire.sharding.arrangement import HOSTS, Arrangement
from thinwire.sharding.compression import Compression
from world import run_world


@pytest.mark.parametrize("divisor", [None, 1.5])
def test_a_state_tells_the_arrangement_that_saved_it(divisor: float | None) -> None:
    arrangement = Arrangement(hosts=(0, 0, 1), num_shards=3, divisor=divisor)
    assert Arrangement.read(arrangement.state()) == arrangement


def test_hosts_are_counted_from_zero_in_the_order_of_ranks() -> None:
    # identifiers of hosts differ from launch to launch
    topology = Topology(hosts=(-7, -7, 40, 3, 3, -7))
    compression = Compression(parse_recipe("zero3"), topology, Ledger(), None)
    compression.num_shards = 6
    arrangement = Arrangement.of(compression)
    assert arrangement.hosts == (0, 0, 1, 2, 2, 0)
    assert (arrangement.size, arrangement.num_hosts) == (6, 3)
    assert str(arrangement) == "6 ranks on 3 hosts"


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ((0,), False),
        ((0, 0), False),
        ((0, 1), False),
        ((0, 0, 1), False),
        ((0, 1, 0, 1), False),
        ((0, 0, 1, 1), True),
    ],
)
def test_two_levels_are_several_hosts_of_several_ranks(
    hosts: tuple[int, ...], expected: bool
) -> None:
    assert Arrangement(hosts=hosts, num_shards=1).has_two_levels is expected


@pytest.mark.parametrize("state", [{}, {HOSTS: torch.tensor([0, 1])}, {HOSTS: torch.tensor(2)}])
def test_what_is_no_state_is_refused(state: dict[str, torch.Tensor]) -> None:
    with pytest.raises(StateError, match="no compression state"):
        Arrangement.read(state)


def columns_body(rank: int, size: int) -> tuple[int, int]:
    recipe = parse_recipe("zero3:grads=int8/32:min_numel=0:compute=fp32:weights=fp32")
    counts = []
    for placement in (Shard(0), Shard(1)):
        model = nn.Linear(8, 8, bias=False)
        fully_shard(model, shard_placement_fn={model.weight: placement}.get)
        tw.compress(model, recipe)
        counts.append(int(tw.compression_state(model)["shared/arrangement/num_shards"]))
    return counts[0], counts[1]


def test_columns_are_not_dealt_out_as_rows_are() -> None:
    assert run_world(columns_body, 2) == [(2, 0)] * 2
