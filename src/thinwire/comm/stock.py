"""PyTorch's own collectives, unchanged, with their bytes in the ledger.

The uncompressed recipes run through these, so that a comparison counts both sides alike. What a
backend sends depends on its algorithm:

    all-gather       ring everywhere: (W - 1) * shard bytes
    reduce-scatter   NCCL, ring: (W - 1) / W * input bytes; gloo runs an all-reduce inside and
                     keeps a slice: 2 (W - 1) / W * input bytes
    all-reduce       ring everywhere: 2 (W - 1) / W * input bytes
    broadcast        gloo, binomial tree: rank 0 sends it log2(W) times, others less often; NCCL,
                     ring: every rank but the last sends it once

An error of the backend is raised as a ``RankError`` with the names of the two neighbours in the
ring; one of a gather or reduce-scatter with ``async_op`` comes as it is from whoever waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.comm.ledger import BF16_BYTES, Ledger
from thinwire.comm.lost_peer import lost_in_ring, lost_peer
from thinwire.comm.reduction import ReduceOp
from thinwire.comm.topology import Peers, backend_device

__all__ = [
    "Reduction",
    "all_gather",
    "all_reduce",
    "all_reduce_losses",
    "all_reduce_max",
    "broadcast",
    "reduce_scatter",
]

NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def all_gather(
    output: Tensor, shard: Tensor, peers: Peers, ledger: Ledger, *, async_op: bool = False
) -> dist.Work | None:
    """``torch.distributed.all_gather_single``, counted.

    Bytes sent per rank = (W - 1) * bytes of ``shard``.
    """
    try:
        work: dist.Work | None = dist.all_gather_single(
            output, shard, group=peers.group, async_op=async_op
        )
    except RuntimeError as error:
        raise lost_in_ring(peers, error) from error
    _record(ledger, "all_gather", peers, shard, peers.size - 1)
    return work


def reduce_scatter(
    output: Tensor,
    contributions: Tensor,
    peers: Peers,
    ledger: Ledger,
    op: ReduceOp,
    *,
    async_op: bool = False,
) -> dist.Work | None:
    """``torch.distributed.reduce_scatter_single``, counted.

    Bytes sent per rank = (W - 1) / W * bytes of ``contributions``, twice that on gloo.
    """
    try:
        work: dist.Work | None = dist.reduce_scatter_single(
            output, contributions, op=op, group=peers.group, async_op=async_op
        )
    except RuntimeError as error:
        raise lost_in_ring(peers, error) from error
    passes = 2 if dist.get_backend(peers.group) == "gloo" else 1
    _record(ledger, "reduce_scatter", peers, output, passes * (peers.size - 1), peers.size - 1)
    return work


class Reduction:
    """An all-reduce under way.

    Args:
        work: the backend's.
        peers: those who take part.
    """

    def __init__(self, work: dist.Work, peers: Peers) -> None:
        self._work = work
        self._peers = peers

    def wait(self) -> None:
        """Return when it is done.

        Raises:
            RankError: a peer closed the connection or did not answer in time; says which.
        """
        try:
            self._work.wait()
        except RuntimeError as error:
            raise lost_in_ring(self._peers, error) from error

    def future(self) -> torch.futures.Future[Tensor]:
        """Of the reduced values; an error in it is the backend's."""
        future: torch.futures.Future[list[Tensor]] = self._work.get_future()
        return future.then(lambda done: done.value()[0])


def all_reduce(
    values: Tensor, peers: Peers, ledger: Ledger, op: ReduceOp = dist.ReduceOp.SUM
) -> Reduction:
    """``torch.distributed.all_reduce``, counted, in place and under way when this returns.

    Bytes sent per rank = 2 (W - 1) / W * bytes of ``values``.
    """
    work = dist.all_reduce(values, op=op, group=peers.group, async_op=True)
    assert work is not None  # async_op=True on a member of the group
    _record(ledger, "all_reduce", peers, values, 2 * (peers.size - 1) / peers.size)
    return Reduction(work, peers)


def broadcast(tensors: Sequence[Tensor], peers: Peers, ledger: Ledger) -> None:
    """The first rank's tensors become everyone's, those of a dtype at once, counted.

    Bytes sent per rank = bytes of ``tensors`` * number of ranks that this one tells; see
    :func:`_tree`.

    Args:
        tensors: contiguous or not, of any dtype; overwritten but on the first rank.
        peers: all ranks of a group.
        ledger: where sent bytes are recorded; they count as often in bf16, for nobody sends
            fewer.

    Raises:
        RankError: a peer closed the connection or did not answer in time; says which.
    """
    tellers, told = _tree(peers)
    for alike in _by_kind(tensors):
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in alike])
        try:
            dist.broadcast(flat, group_src=0, group=peers.group)
        except RuntimeError as error:
            raise lost_peer(peers, (*tellers, *told), error) from error
        if peers.rank:
            parts = torch.split(flat, [tensor.numel() for tensor in alike])
            for tensor, part in zip(alike, parts, strict=True):
                tensor.copy_(part.view_as(tensor))
        nbytes = flat.numel() * flat.element_size()
        across = sum(map(peers.is_across, told))
        ledger.record(
            "broadcast",
            within_bytes=nbytes * (len(told) - across),
            across_bytes=nbytes * across,
            bf16_bytes=nbytes * len(told),
            formats=frozenset({_name(flat.dtype)}),
        )


def _by_kind(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Tensors that fit in one: of one dtype, on one device; none that has no elements."""
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        if tensor.numel():
            kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return list(kinds.values())


def _tree(peers: Peers) -> tuple[list[int], list[int]]:
    """From whom a rank has what the first one broadcasts, and whom it tells.

    In gloo's tree, after i of its rounds the first 2^i ranks have it, and each of them tells the
    one that is 2^i further on.
    """
    rank, size = peers.rank, peers.size
    if dist.get_backend(peers.group) != "gloo":
        return [rank - 1] if rank else [], [rank + 1] if rank + 1 < size else []
    reached = rank.bit_length()
    distances = [1 << turn for turn in range(reached, size.bit_length())]
    tellers = [rank - (1 << (reached - 1))] if rank else []
    return tellers, [rank + distance for distance in distances if rank + distance < size]


def all_reduce_max(values: Sequence[int], peers: Peers, ledger: Ledger) -> list[int]:
    """The largest value of any rank, entry by entry; for ranks to agree on what to do.

    Bytes sent per rank = 2 (W - 1) / W * 8 per value.
    """
    agreed = torch.tensor(list(values), dtype=torch.int64, device=backend_device(peers.group))
    try:
        dist.all_reduce(agreed, op=dist.ReduceOp.MAX, group=peers.group)
    except RuntimeError as error:
        raise lost_in_ring(peers, error) from error
    _record(ledger, "agreement", peers, agreed, 2 * (peers.size - 1) / peers.size, 0)
    return [int(value) for value in agreed.tolist()]


def all_reduce_losses(losses: Tensor, peers: Peers, ledger: Ledger) -> Tensor:
    """The sum over all ranks of what formats would lose, for ranks to choose the same formats.

    Bytes sent per rank = 2 (W - 1) / W * bytes of ``losses``.

    Args:
        losses: float64, on a device that the backend takes; overwritten.
        peers: the ranks that take part.
        ledger: where sent bytes are recorded.
    """
    try:
        dist.all_reduce(losses, group=peers.group)
    except RuntimeError as error:
        raise lost_in_ring(peers, error) from error
    _record(ledger, "agreement", peers, losses, 2 * (peers.size - 1) / peers.size, 0)
    return losses


def _record(
    ledger: Ledger,
    collective: str,
    peers: Peers,
    unit: Tensor,
    times: float,
    bf16_times: float | None = None,
) -> None:
    """Record that ``times`` times the bytes of ``unit`` went round the ring."""
    sent_bytes = round(times * unit.numel() * unit.element_size())
    across = peers.size > 1 and peers.is_across(peers.successor)
    ledger.record(
        collective,
        within_bytes=0 if across else sent_bytes,
        across_bytes=sent_bytes if across else 0,
        bf16_bytes=round((times if bf16_times is None else bf16_times) * unit.numel() * BF16_BYTES),
        formats=frozenset({_name(unit.dtype)}),
    )


def _name(dtype: torch.dtype) -> str:
    return NAMES.get(dtype, str(dtype).removeprefix("torch."))
