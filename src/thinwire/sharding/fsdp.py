"""FSDP2's sockets: what is plugged in where ``fully_shard`` gathers weights and reduces gradients.

Note: one object per FSDP2 module. FSDP2 calls the object in forward and in backward; with
``reshard_after_forward=int`` the backward call passes the smaller group within the host, so the
group is read on every call. At world size 1 FSDP2 calls neither object.

Note: draws. The random numbers of a step are keyed by the number of reductions that the module
has finished. Forward and backward of one step see the same weights, and a run repeats bit for bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.comm import collectives, stock
from thinwire.comm.collectives import Traffic
from thinwire.comm.hierarchy import (
    FirstHop,
    TwoLevels,
    reduce_scatter_in_two_hops,
    reduce_within,
)
from thinwire.comm.layout import ShardLayout
from thinwire.comm.reduction import ReduceOp, fixed_divisor
from thinwire.comm.sender import Job
from thinwire.comm.topology import Peers
from thinwire.errors import ConfigError
from thinwire.recipe import Recipe
from thinwire.rules import FormatRule
from thinwire.sharding.compression import Compression
from thinwire.sharding.late import LateGradients
from thinwire.sharding.units import CAST_NAMES, Member, Unit, cast_format
from thinwire.wire.key import Key

__all__ = [
    "CompressedAllGather",
    "CompressedReduceScatter",
    "Socket",
    "StockAllGather",
    "StockReduceScatter",
    "check_compute_dtype",
]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
AS_THEY_ARE = {dtype: FormatRule(cast_format(dtype)) for dtype in CAST_NAMES}
WEIGHTS, GRADS = 1, 2  # separate the random numbers of the two directions


class Socket:
    """What all sockets share: the unit, the wire below, and FSDP2's request to allocate."""

    def __init__(self, unit: Unit, compression: Compression) -> None:
        self.unit = unit
        self.compression = compression
        self._peers: dict[str, Peers] = {}

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """A fresh buffer for one collective; part of FSDP2's interface."""
        return torch.empty(*size, dtype=dtype, device=device)

    def peers(self, group: dist.ProcessGroup) -> Peers:
        """The ranks of a group and their hosts."""
        if group.group_name not in self._peers:
            self._peers[group.group_name] = self.compression.topology.peers(group)
        return self._peers[group.group_name]

    def traffic(self, layout: ShardLayout, group: dist.ProcessGroup) -> Traffic:
        """What a collective over ``group`` needs to know."""
        return Traffic(layout, self.peers(group), self.compression.ledger)

    def exchange_late(self, late: LateGradients, output: Tensor, reduced: Tensor, job: Job) -> None:
        """Give FSDP2 the gradients of the reduction before, and start the present one.

        Args:
            late: where the former are kept; they have arrived.
            output: what FSDP2 goes on with.
            reduced: where the present reduction writes its result.
            job: the present reduction.
        """
        members = self.unit.trained
        names, sizes = [m.name for m in members], [m.piece_numel for m in members]
        ticket = self.compression.reduce_late(job)
        late.drop(frozenset(member.name for member in self.unit.members).difference(names))
        late.exchange(
            dict(zip(names, torch.split(output, sizes), strict=True)),
            dict(zip(names, torch.split(reduced, sizes), strict=True)),
            ticket,
        )

    def key(self, direction: int, step: int) -> Key:
        """Names the random numbers of one direction in one step.

        Every parameter's own are told apart by its name, and do not depend on its unit.
        """
        seed, rank = self.compression.recipe.seed, dist.get_rank()
        return Key(seed=seed, step=step, rank=rank).fold(direction)


class StockAllGather(Socket):
    """FSDP2's own all-gather, counted."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Gather the shards as they are."""
        peers, ledger = self.peers(group), self.compression.ledger
        return stock.all_gather(output_tensor, input_tensor, peers, ledger, async_op=async_op)


class StockReduceScatter(Socket):
    """FSDP2's own reduce-scatter, counted."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: ReduceOp,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Reduce the gradients as they are."""
        return stock.reduce_scatter(
            output_tensor,
            input_tensor,
            self.peers(group),
            self.compression.ledger,
            op,
            async_op=async_op,
        )


class CompressedReduceScatter(Socket):
    """Gradients on the wire in the recipe's formats; the result is in FSDP2's ``reduce_dtype``.

    Args:
        unit: whose gradients are reduced.
        compression: what all sockets of the model share.
        hand_over: takes the jobs whose result FSDP2 passes on to an all-reduce hook, and where it
            goes; by default they are run here.
    """

    def __init__(
        self,
        unit: Unit,
        compression: Compression,
        hand_over: Callable[[Job, Tensor], None] | None = None,
    ) -> None:
        super().__init__(unit, compression)
        self._hand_over = hand_over
        self._held = compression.new_held_sum()

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: ReduceOp,
        async_op: bool = False,  # noqa: ARG002 - FSDP2's interface
    ) -> None:
        """Reduce the gradients of the unit's trained parameters, now or beside backward."""
        compression, late = self.compression, self.compression.late
        compression.divisor = fixed_divisor(op)
        is_final = op == dist.ReduceOp.AVG  # FSDP2 divides by itself around a SUM
        if self._hand_over is not None:
            if compression.sender is None or not is_final:
                compression.reduce_now(self._job(output_tensor, input_tensor, group, op))
                return
            # what is late is not what FSDP2 goes on with
            reduced = output_tensor if late is None else torch.empty_like(output_tensor)
            self._hand_over(self._job(reduced, input_tensor, group, op), reduced)
        elif self._stays_within(group):
            self._hold(input_tensor, group)
            output_tensor.zero_()
        elif late is not None:
            late.wait(member.name for member in self.unit.trained)
            reduced = torch.empty_like(output_tensor)
            job = self._job(reduced, input_tensor, group, op)
            self.exchange_late(late, output_tensor, reduced, job)
        else:
            job = self._job(output_tensor, input_tensor, group, op)
            if compression.may_defer(self.unit, output_tensor, is_final=is_final):
                compression.reduce_later(job)
            else:
                compression.reduce_now(job)

    def _stays_within(self, group: dist.ProcessGroup) -> bool:
        """Whether what is reduced now has to wait for the last micro-batch to cross hosts."""
        compression = self.compression
        if compression.recipe.hybrid or not compression.stays_within:
            return False
        return len(set(self.peers(group).hosts)) > 1

    def _hold(self, contributions: Tensor, group: dist.ProcessGroup) -> None:
        """Reduce within the host, and hold what that leaves for the ranks of this place."""
        compression, levels = self.compression, TwoLevels.of(self.peers(group))
        key = self.key(GRADS, compression.counters.count(_reductions(self.unit)))
        if levels.within.size == 1:
            self._held.take(contributions.float())
            return
        layout = self._layout_within(contributions.dtype)
        hop = FirstHop(Traffic(layout, levels.within, compression.ledger, compression.feedback))
        shape = (levels.across.size, layout.slot_numel)
        partial = torch.empty(shape, dtype=torch.float32, device=contributions.device)
        compression.reduce_now(reduce_within(partial, contributions, hop, key))
        self._held.take(partial)

    def _layout_within(self, dtype: torch.dtype) -> ShardLayout:
        """How gradients are packed for ranks of this host."""
        formats = self.compression.grad_formats_within or AS_THEY_ARE[dtype]
        return self.unit.layout(self.unit.trained, formats, cast_format(dtype))

    def _job(
        self, output: Tensor, contributions: Tensor, group: dist.ProcessGroup, op: ReduceOp
    ) -> Job:
        compression, peers = self.compression, self.peers(group)
        ledger, feedback = compression.ledger, compression.feedback
        key = self.key(GRADS, compression.counters.count(_reductions(self.unit)))
        members, exact = self.unit.trained, cast_format(contributions.dtype)
        layout = self.unit.layout(members, compression.grad_formats, exact)
        compression.observe(_own_slot(layout, contributions, peers.rank))
        if compression.recipe.hybrid:
            # the group is the host; what crosses hosts is the average that follows
            layout = self._layout_within(contributions.dtype)
        elif compression.grad_formats_within or compression.recipe.accumulate == "within":
            levels, within = TwoLevels.of(peers), self._layout_within(contributions.dtype)
            held = self._held.release()
            if levels.within.size > 1 and levels.across.size > 1:
                first = FirstHop(Traffic(within, levels.within, ledger, feedback), held)
                second = Traffic(layout, levels.across, ledger, feedback)
                return reduce_scatter_in_two_hops(output, contributions, first, second, key, op)
            if held is not None:
                contributions = held.add_(contributions)
            # a single host, or a single rank on each: there is one hop, and one format
            layout = within if levels.across.size == 1 else layout
        traffic = Traffic(layout, peers, ledger, feedback)
        return collectives.reduce_scatter(output, contributions, traffic, key, op)


class CompressedAllGather(Socket):
    """Weights on the wire in the recipe's format; the result is in FSDP2's ``param_dtype``."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,  # noqa: ARG002 - FSDP2's interface
    ) -> None:
        """Gather the unit's parameters; within the host, what was gathered before, as it is."""
        if group.size() != self.unit.world_size:
            # hpZ: the secondary shards hold decoded values, and the link within a host is wide
            peers, ledger = self.peers(group), self.compression.ledger
            stock.all_gather(output_tensor, input_tensor, peers, ledger)
        elif input_tensor.dtype == torch.uint8:
            self._gather_mixed(output_tensor, input_tensor, group)
        else:
            check_compute_dtype(self.compression.recipe, input_tensor.dtype)
            self._gather(output_tensor, input_tensor, self.unit.members, group)

    def _gather(
        self,
        output: Tensor,
        shard: Tensor,
        members: tuple[Member, ...],
        group: dist.ProcessGroup,
    ) -> None:
        formats = self.compression.weight_formats
        layout = self.unit.layout(members, formats, cast_format(shard.dtype))
        key = self.key(WEIGHTS, self.compression.counters[_reductions(self.unit)])
        collectives.all_gather(output, shard, self.traffic(layout, group), key)

    def _gather_mixed(self, output: Tensor, shard: Tensor, group: dist.ProcessGroup) -> None:
        """Gather parameters of several dtypes, which FSDP2 lays out as bytes, run by run."""
        rows = output.view(group.size(), -1)
        start = 0
        for dtype, members in _runs(self.unit.members, self._buffer_dtypes(len(shard))):
            numel = sum(member.piece_numel for member in members)
            stop = start + numel * dtype.itemsize
            # a copy: bytes at an odd offset cannot be viewed as floats
            piece = shard[start:stop].clone().view(dtype)
            whole = torch.empty(group.size() * numel, dtype=dtype, device=shard.device)
            if dtype in CAST_NAMES:
                self._gather(whole, piece, members, group)
            else:
                stock.all_gather(whole, piece, self.peers(group), self.compression.ledger)
            rows[:, start:stop].copy_(whole.view(torch.uint8).view(group.size(), -1))
            start = stop

    def _buffer_dtypes(self, slot_bytes: int) -> list[torch.dtype]:
        """The dtype of every parameter in a buffer of bytes: its own, or the one it is cast to."""
        compute = DTYPES[self.compression.recipe.compute]
        for param_dtype in (compute, None):
            dtypes = [
                param_dtype if param_dtype and member.dtype.is_floating_point else member.dtype
                for member in self.unit.members
            ]
            sizes = zip(self.unit.members, dtypes, strict=True)
            if sum(member.piece_numel * dtype.itemsize for member, dtype in sizes) == slot_bytes:
                return dtypes
        raise ConfigError(
            f"the {slot_bytes} bytes that FSDP2 gathers for module {self.unit.name or '(root)'} "
            f"are neither its parameters as they are nor cast to {compute}: wrap the model with "
            "MixedPrecisionPolicy(param_dtype=...) to match the recipe's compute"
        )


def _reductions(unit: Unit) -> str:
    """The counter of a unit's reductions."""
    return f"reductions of {unit.name}"


def check_compute_dtype(recipe: Recipe, dtype: torch.dtype) -> None:
    """Raise if FSDP2 computes in another dtype than the recipe says, unless it is not strict."""
    if recipe.strict and CAST_NAMES.get(dtype) != recipe.compute:
        raise ConfigError(
            f"FSDP2 gathers {dtype} but the recipe says compute={recipe.compute}: wrap the model "
            "with MixedPrecisionPolicy(param_dtype=...) to match, or change the recipe's compute"
        )


def _own_slot(
    layout: ShardLayout, contributions: Tensor, rank: int
) -> Iterator[tuple[str, Tensor]]:
    """What a rank contributes to its own slot, by parameter, without padding."""
    slot = contributions.view(layout.world_size, -1)[rank]
    sizes = [piece.piece_numel for piece in layout.pieces]
    for piece, values in zip(layout.pieces, torch.split(slot, sizes), strict=True):
        yield piece.name, values[: piece.real_numel(rank)]


def _runs(
    members: tuple[Member, ...], dtypes: list[torch.dtype]
) -> list[tuple[torch.dtype, tuple[Member, ...]]]:
    """Consecutive members whose elements have the same dtype in the buffer."""
    pairs = itertools.groupby(zip(dtypes, members, strict=True), key=lambda pair: pair[0])
    return [(dtype, tuple(member for _, member in run)) for dtype, run in pairs]
