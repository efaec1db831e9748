"""Compressed collectives against sums made by hand, in worlds of several sizes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.comm import collectives
from thinwire.comm.collectives import Traffic
from thinwire.comm.exchange import exchange
from thinwire.comm.layout import Piece, ShardLayout, row_piece_numel
from thinwire.comm.ledger import Ledger
from thinwire.comm.reduction import ReduceOp
from thinwire.comm.sender import run_now
from thinwire.comm.topology import discover_topology
from thinwire.errors import ConfigError, StateError
from thinwire.formats import parse_format
from thinwire.wire.key import Key
from world import run_world

# shapes at which other systems fell over: not a multiple of anything, fewer rows than ranks, empty
SHAPES = ((1,), (7,), (8,), (9,), (2305,), (3,), (0, 4), (1601, 3), (5, 2, 3, 1), (64, 64))
SHARED_SIZES = (2, 3, 5)


def make_layout(fmt: str, world_size: int) -> ShardLayout:
    return ShardLayout(
        (
            Piece(
                name=f"p{index}",
                numel=math.prod(shape),
                piece_numel=row_piece_numel(shape, world_size),
                format=parse_format("fp32") if len(shape) == 4 else parse_format(fmt),
            )
            for index, shape in enumerate(SHAPES)
        ),
        world_size,
    )


def make_traffic(fmt: str, size: int) -> Traffic:
    group = dist.group.WORLD
    assert group is not None
    return Traffic(make_layout(fmt, size), discover_topology().peers(group), Ledger())


def slot_of(rank: int, numel: int, dtype: torch.dtype = torch.float32) -> Tensor:
    # magnitudes that differ a millionfold between ranks: scales must travel with their payload
    generator = torch.Generator().manual_seed(rank)
    return (torch.randn(numel, generator=generator) * 10.0 ** (3 * (rank % 3) - 3)).to(dtype)


def run_reduce(out: Tensor, mine: Tensor, traffic: Traffic, key: Key, op: ReduceOp) -> None:
    run_now(collectives.reduce_scatter(out, mine, traffic, key, op))


def fingerprint(tensor: Tensor) -> int:
    return hash(tensor.contiguous().view(torch.uint8).numpy().tobytes())


def mask_padding(layout: ShardLayout, size: int) -> Tensor:
    rows = []
    for rank in range(size):
        parts = [
            torch.arange(piece.piece_numel) < piece.real_numel(rank) for piece in layout.pieces
        ]
        rows.append(torch.cat(parts))
    return torch.stack(rows)


def gather_body(rank: int, size: int, fmt: str, dtype_name: str) -> tuple[int, int, int]:
    dtype = getattr(torch, dtype_name)
    traffic = make_traffic(fmt, size)
    numel = traffic.layout.slot_numel
    whole = torch.empty(size * numel, dtype=dtype)
    shard = whole.view(size, -1)[rank]  # FSDP2 passes a view into the output
    shard.copy_(slot_of(rank, numel, dtype))
    collectives.all_gather(whole, shard, traffic, Key(seed=1, step=2, parameter="x", rank=rank))
    real = mask_padding(traffic.layout, size)
    expected = torch.stack([slot_of(other, numel, dtype) for other in range(size)])
    got = whole.view(size, -1)
    assert got.dtype == dtype
    assert torch.all(got[~real] == 0)
    for other in range(size):
        values, reference = got[other][real[other]].float(), expected[other][real[other]].float()
        # a step is the block's maximum over 127, rounded up by at most 2**-15; bf16 rounds by 2**-9
        step = (1 + 2.0**-15) / 127 + (0 if dtype == torch.float32 else 2.0**-9)
        assert (values - reference).abs().max() <= reference.abs().max() * step
    error = (got - expected)[real].float().abs().sum()
    assert (error > 0) == fmt.startswith("int")
    sent = traffic.ledger.report()
    assert sent["sent_bytes"] == (size - 1) * traffic.layout.slot_bytes
    return fingerprint(got), sent["across_bytes"], sent["within_bytes"]


@pytest.mark.parametrize("size", SHARED_SIZES)
@pytest.mark.parametrize(
    ("fmt", "dtype"),
    [("int8/128", "float32"), ("int8/128+stochastic", "bfloat16"), ("fp32", "float32")],
)
def test_all_ranks_hold_the_same_bits_after_a_gather(size: int, fmt: str, dtype: str) -> None:
    answers = run_world(gather_body, size, fmt, dtype)
    assert len({bits for bits, _, _ in answers}) == 1


def test_a_ring_within_one_host_crosses_nothing() -> None:
    answers = run_world(gather_body, 4, "int8/128", "float32", ranks_per_host=2)
    # ranks 0 and 2 send to their neighbour on the host, 1 and 3 to the other host
    assert [across > 0 for _, across, _ in answers] == [False, True, False, True]
    assert [within > 0 for _, _, within in answers] == [True, False, True, False]


def rings_body(rank: int, size: int) -> int:
    rings, own_ring = [], dist.all_gather_single

    def counted(*args: Any, **options: Any) -> Any:
        rings.append(args)
        return own_ring(*args, **options)

    dist.all_gather_single = counted
    gather_body(rank, size, "int8/128", "float32")
    return len(rings)


@pytest.mark.parametrize(
    ("size", "ranks_per_host", "is_ring"),
    [(2, 1, False), (3, 1, False), (2, 2, False), (4, 2, True), (3, 3, True)],
)
def test_a_gather_takes_the_ring_where_hosts_have_several_ranks(
    size: int, ranks_per_host: int, is_ring: bool
) -> None:
    # In rounds a payload would enter a host once for each of its ranks. make_traffic asks every
    # rank for its host, which is one call more.
    assert run_world(rings_body, size, ranks_per_host=ranks_per_host) == [1 + is_ring] * size


OPS: dict[str, tuple[ReduceOp, float]] = {
    "SUM": (dist.ReduceOp.SUM, 1.0),
    "AVG": (dist.ReduceOp.AVG, 0.0),  # 0 stands for 1 / size
    "PREMUL_SUM": (dist._make_nccl_premul_sum(0.125), 0.125),  # type: ignore[attr-defined]
}


def reduce_body(rank: int, size: int, fmt: str, op_name: str) -> None:
    op, factor = OPS[op_name]
    traffic = make_traffic(fmt, size)
    numel = traffic.layout.slot_numel
    mine = torch.cat([slot_of(rank * size + slot, numel) for slot in range(size)])
    out = torch.full((numel,), torch.nan)
    key = Key(seed=1, step=2, parameter="x", rank=rank)
    run_reduce(out, mine, traffic, key, op)
    real = mask_padding(traffic.layout, size)[rank]
    parts = torch.stack([slot_of(other * size + rank, numel) for other in range(size)])
    expected = torch.zeros(numel)
    for part in parts:  # fp32, in rank order: the law that makes results repeat
        expected += part
    expected *= factor or 1 / size
    steps = 127 if "int8" in fmt else 2.0**20
    bound = (factor or 1 / size) * parts.abs().amax(1).sum() / steps
    assert (out - expected)[real].abs().max() <= bound
    assert torch.all(out[~real] == 0)
    sent = traffic.ledger.report()
    packings = traffic.layout.packings
    assert sent["sent_bytes"] == sum(p.wire_bytes for r, p in enumerate(packings) if r != rank)


@pytest.mark.parametrize("size", SHARED_SIZES)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("fmt", ["int8/128", "fp32"])
def test_reductions_agree_with_the_sum_by_hand(size: int, op: str, fmt: str) -> None:
    run_world(reduce_body, size, fmt, op)


def exact_reduce_body(rank: int, size: int) -> None:
    traffic = make_traffic("fp32", size)
    numel = traffic.layout.slot_numel
    mine = torch.cat([slot_of(rank * size + slot, numel) for slot in range(size)])
    out = torch.empty(numel)
    run_reduce(out, mine, traffic, Key(), dist.ReduceOp.SUM)
    expected = slot_of(rank, numel)
    for other in range(1, size):
        expected = expected + slot_of(other * size + rank, numel)
    real = mask_padding(traffic.layout, size)[rank]
    assert torch.equal(out[real], expected[real])


def test_the_identity_format_sums_in_rank_order_to_the_bit() -> None:
    run_world(exact_reduce_body, 3)


def reduced_precision_body(rank: int, size: int) -> None:
    """Gradients in fp16 near its limits neither overflow nor vanish, since the sum is in fp32."""
    layout = ShardLayout(
        [Piece(name="g", numel=256, piece_numel=256 // size, format=parse_format("int8/128"))],
        size,
    )
    group = dist.group.WORLD
    assert group is not None
    for magnitude in (6e4, 6e-8):
        traffic = Traffic(layout, discover_topology().peers(group), Ledger())
        grads = torch.full((256,), magnitude, dtype=torch.float16)
        out = torch.empty(layout.slot_numel, dtype=torch.float16)
        run_reduce(out, grads, traffic, Key(rank=rank), dist.ReduceOp.AVG)
        # int8 holds a constant block to 1/127; fp16's smallest step is 6e-8 itself
        assert torch.allclose(out.float(), grads[: out.numel()].float(), rtol=1 / 127, atol=0)


def test_averages_of_fp16_extremes_survive() -> None:
    run_world(reduced_precision_body, 4)


def all_reduce_body(rank: int, size: int, dtype_name: str) -> int:
    dtype = getattr(torch, dtype_name)
    traffic = make_traffic("int8/128", size)
    numel = traffic.layout.slot_numel * size
    real = mask_padding(traffic.layout, size).view(-1)
    values = slot_of(rank, numel, dtype)
    expected = torch.stack([slot_of(r, numel, dtype).float() for r in range(size)]).mean(0)
    peak = torch.stack([slot_of(r, numel, dtype).float().abs().max() for r in range(size)])
    run_now(collectives.all_reduce(values, traffic, Key(rank=rank), dist.ReduceOp.AVG))
    # one rounding on the way there per rank, one on the way back
    bound = peak.mean() / 127 * 2 + peak.mean() * (0 if dtype == torch.float32 else 2.0**-8)
    assert (values.float() - expected)[real].abs().max() <= bound
    return fingerprint(values)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("size", [2, 3])
def test_all_ranks_hold_the_same_bits_after_an_all_reduce(size: int, dtype: str) -> None:
    assert len(set(run_world(all_reduce_body, size, dtype))) == 1


def nan_body(rank: int, size: int) -> None:
    traffic = make_traffic("int4/128", size)
    numel = traffic.layout.slot_numel
    grads = torch.ones(numel * size)
    if rank == 1:
        grads[:numel:40] = math.nan  # only in rank 1's contribution to rank 0's slot
    out = torch.empty(numel)
    run_reduce(out, grads, traffic, Key(rank=rank), dist.ReduceOp.SUM)
    assert bool(out.isnan().any()) == (rank == 0)


def test_a_nan_reaches_the_rank_that_owns_the_element() -> None:
    run_world(nan_body, 2)


def refusal_body(rank: int, size: int) -> None:
    traffic = make_traffic("int8/128", size)
    numel = traffic.layout.slot_numel
    with pytest.raises(StateError, match="attach it again"):
        collectives.all_gather(torch.empty(size * numel + 1), torch.empty(numel), traffic, Key())
    with pytest.raises(ConfigError, match="SUM, AVG or PREMUL_SUM"):
        run_reduce(torch.empty(numel), torch.ones(size * numel), traffic, Key(), dist.ReduceOp.MAX)


def test_wrong_sizes_and_operations_are_refused() -> None:
    run_world(refusal_body, 2)


def chunk_body(rank: int, size: int) -> None:
    """Payloads longer than a chunk, of different lengths, arrive whole and in place."""
    group = dist.group.WORLD
    assert group is not None
    peers = discover_topology().peers(group)

    def message(source: int, target: int) -> Tensor:
        generator = torch.Generator().manual_seed(source * size + target)
        length = 700_000 + 300_000 * target  # the receiver decides the length
        return torch.randint(0, 256, (length,), dtype=torch.uint8, generator=generator)

    incoming = [torch.empty_like(message(source, rank)) for source in range(size)]
    exchange([message(rank, target) for target in range(size)], incoming, peers)
    for source in range(size):
        assert torch.equal(incoming[source], message(source, rank))


def test_long_payloads_arrive_whole() -> None:
    run_world(chunk_body, 3)
