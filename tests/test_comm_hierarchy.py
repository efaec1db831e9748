"""Two hops: the same sum, on the rank that owns it, with fewer bytes across hosts."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from test_comm_collectives import make_layout, mask_padding, slot_of
from thinwire.comm.collectives import Traffic
from thinwire.comm.hierarchy import (
    FirstHop,
    TwoLevels,
    reduce_scatter_in_two_hops,
    reduce_within,
)
from thinwire.comm.ledger import Ledger
from thinwire.comm.sender import run_now
from thinwire.comm.topology import Peers, discover_topology, even_ranks_per_host
from thinwire.errors import ConfigError
from thinwire.wire.key import Key
from thinwire.wire.packing import Packing
from world import run_world


def world_peers() -> Peers:
    group = dist.group.WORLD
    assert group is not None
    return discover_topology().peers(group)


def two_hops_body(rank: int, size: int, within: str, across: str) -> dict[str, int]:
    levels, ledger = TwoLevels.of(world_peers()), Ledger()
    near, far = make_layout(within, size), make_layout(across, size)
    numel = near.slot_numel
    mine = torch.cat([slot_of(rank * size + slot, numel) for slot in range(size)])
    out = torch.full((numel,), torch.nan)
    key = Key(seed=3, rank=rank)
    within_hop = FirstHop(Traffic(near, levels.within, ledger))
    across_hop = Traffic(far, levels.across, ledger)
    run_now(reduce_scatter_in_two_hops(out, mine, within_hop, across_hop, key, dist.ReduceOp.AVG))
    parts = torch.stack([slot_of(other * size + rank, numel) for other in range(size)])
    real = mask_padding(near, size)[rank]
    # per hop half a step of each term's block maximum, which no slot's maximum is below
    steps = {"fp32": 2.0**22, "int8/128": 127, "int4/128": 7}
    bound = parts.abs().amax(1).sum() * (1 / steps[within] + 1 / steps[across]) / size
    assert (out - parts.mean(0))[real].abs().max() <= bound
    assert torch.all(out[~real] == 0)
    report = ledger.report()
    hosts, places = levels.across, levels.within
    packings, per_host = far.packings, places.size
    expected_across = sum(
        packings[host * per_host + places.rank].wire_bytes
        for host in range(hosts.size)
        if host != hosts.rank
    )
    assert report["across_bytes"] == expected_across
    return {"across": report["across_bytes"], "within": report["within_bytes"]}


def rotated_body(rank: int, size: int, within: str, across: str) -> None:
    """What both hops rotate is rotated once and back once: bit for bit the same done by hand."""
    levels = TwoLevels.of(world_peers())
    near, far = make_layout(within, size), make_layout(across, size)
    numel, places = near.slot_numel, levels.within.size
    out = torch.empty(numel)
    mine = torch.cat([slot_of(rank * size + slot, numel) for slot in range(size)])
    hop = FirstHop(Traffic(near, levels.within, Ledger()))
    far_traffic = Traffic(far, levels.across, Ledger())
    key = Key(seed=3, rank=rank)
    run_now(reduce_scatter_in_two_hops(out, mine, hop, far_traffic, key, dist.ReduceOp.SUM))
    arrived = []
    for host in range(levels.across.size):
        payloads = []
        for place in range(places):
            values = slot_of((host * places + place) * size + rank, numel)
            payloads.append(packed(near.packings[rank], values))
        partial = torch.empty(numel)
        near.unrotated.packings[rank].decode_sum_into(payloads, partial)
        arrived.append(packed(far.unrotated.packings[rank], partial))
    by_hand = torch.empty(numel)
    far.packings[rank].decode_sum_into(arrived, by_hand)
    assert torch.equal(out, by_hand)
    assert [p.wire_bytes for p in far.packings] == [p.wire_bytes for p in far.unrotated.packings]
    exact = sum(slot_of(other * size + rank, numel) for other in range(size))
    real = mask_padding(near, size)[rank]
    assert isinstance(exact, torch.Tensor)
    # int4's half steps of two hops, far below the sum itself: nothing is left rotated
    assert (out - exact)[real].norm() < 0.3 * exact[real].norm()


def packed(packing: Packing, values: torch.Tensor) -> torch.Tensor:
    payload = torch.empty(packing.wire_bytes, dtype=torch.uint8)
    packing.encode_into(values, payload, Key())
    return payload


@pytest.mark.parametrize("within", ["int8/128+hadamard", "int4/128+hadamard"])
def test_rotations_cancel_between_the_hops(within: str) -> None:
    run_world(rotated_body, 4, within, "int4/128+hadamard", ranks_per_host=2)


@pytest.mark.parametrize(("size", "per_host"), [(4, 2), (6, 3), (6, 2)])
@pytest.mark.parametrize("formats", [("fp32", "fp32"), ("int8/128", "int4/128")])
def test_two_hops_end_with_the_owners_sum(
    size: int, per_host: int, formats: tuple[str, str]
) -> None:
    run_world(two_hops_body, size, *formats, ranks_per_host=per_host)


def held_body(rank: int, size: int) -> None:
    """What was summed within the host before travels with the last contributions, and once."""
    levels, ledger = TwoLevels.of(world_peers()), Ledger()
    near, far = make_layout("fp32", size), make_layout("fp32", size)
    numel, op = near.slot_numel, dist.ReduceOp.SUM
    mine = torch.cat([slot_of(rank * size + slot, numel) for slot in range(size)])
    within, across = Traffic(near, levels.within, ledger), Traffic(far, levels.across, ledger)
    whole, in_parts = torch.empty(numel), torch.empty(numel)
    run_now(reduce_scatter_in_two_hops(whole, mine, FirstHop(within), across, Key(), op))
    once = ledger.report()
    ledger.reset()
    partial = torch.empty((levels.across.size, numel))
    run_now(reduce_within(partial, 0.25 * mine, FirstHop(within), Key()))
    early = ledger.report()
    assert (early["across_bytes"], early["within_bytes"]) == (0, once["within_bytes"])
    last = FirstHop(within, held=partial)
    run_now(reduce_scatter_in_two_hops(in_parts, 0.75 * mine, last, across, Key(), op))
    assert ledger.report()["across_bytes"] == once["across_bytes"]
    terms = torch.stack([slot_of(other * size + rank, numel) for other in range(size)])
    # a dozen products and sums, each to 2**-23 of at most the sum of all magnitudes
    assert torch.all((in_parts - whole).abs() <= 12 * 2.0**-23 * terms.abs().sum(0))


def test_what_is_held_travels_with_the_last_contribution() -> None:
    run_world(held_body, 4, ranks_per_host=2)


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ((0, 0, 1, 1), 2),
        ((5,), 1),
        ((0, 1, 2), 1),
        ((0, 0, 0), 3),
        ((0, 0, 1), None),
        ((0, 1, 0, 1), None),
        ((0, 1, 1, 1), None),
    ],
)
def test_even_hosts(hosts: tuple[int, ...], expected: int | None) -> None:
    assert even_ranks_per_host(hosts) == expected


def uneven_body(rank: int, size: int) -> None:
    with pytest.raises(ConfigError, match="same number of consecutive ranks"):
        TwoLevels.of(world_peers())


def test_uneven_hosts_are_refused() -> None:
    run_world(uneven_body, 3, ranks_per_host=2)
