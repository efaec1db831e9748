"""FSDP2's sockets: what is plugged in where ``fully_shard`` gathers weights and reduces gradients.

Note: one object per FSDP2 module. FSDP2 calls the object in forward and in backward; with
``reshard_after_forward=int`` the backward call passes the smaller group within the host, so the
group is read on every call. At world size 1 FSDP2 calls neither object.

Note: draws. The random numbers of a step are keyed by the number of reductions that the module
has finished. Forward and backward of one step see the same weights, and a run repeats bit for bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.comm import collectives, stock
from thinwire.comm.collectives import Traffic
from thinwire.comm.layout import ShardLayout
from thinwire.comm.ledger import Ledger
from thinwire.comm.reduction import ReduceOp
from thinwire.comm.topology import Topology
from thinwire.errors import ConfigError
from thinwire.recipe import Recipe
from thinwire.sharding.units import CAST_NAMES, Member, Unit
from thinwire.wire.key import Key

__all__ = ["attach"]

WEIGHTS, GRADS = 1, 2  # separate the random numbers of the two directions


class _Socket:
    """What both sockets share: the unit, the wire below, and FSDP2's duty to allocate."""

    def __init__(self, unit: Unit, recipe: Recipe, topology: Topology, ledger: Ledger) -> None:
        self._unit = unit
        self._recipe = recipe
        self._topology = topology
        self._ledger = ledger

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """A fresh buffer for one collective; part of FSDP2's interface."""
        return torch.empty(*size, dtype=dtype, device=device)

    def _traffic(self, layout: ShardLayout, group: dist.ProcessGroup) -> Traffic:
        return Traffic(layout, self._topology.peers(group), self._ledger)

    def _key(self, direction: int, step: int) -> Key:
        rank = dist.get_rank()
        return Key(seed=self._recipe.seed, step=step, parameter=self._unit.name, rank=rank).fold(
            direction
        )


class StockAllGather(_Socket):
    """FSDP2's own all-gather, counted."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Gather the shards as they are."""
        peers = self._topology.peers(group)
        return stock.all_gather(output_tensor, input_tensor, peers, self._ledger, async_op=async_op)


class StockReduceScatter(_Socket):
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
        peers = self._topology.peers(group)
        return stock.reduce_scatter(
            output_tensor, input_tensor, peers, self._ledger, op, async_op=async_op
        )


class CompressedReduceScatter(_Socket):
    """Gradients on the wire in the recipe's format; the result is in FSDP2's ``reduce_dtype``."""

    def __init__(self, unit: Unit, recipe: Recipe, topology: Topology, ledger: Ledger) -> None:
        super().__init__(unit, recipe, topology, ledger)
        self.num_reductions = 0

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: ReduceOp,
        async_op: bool = False,
    ) -> None:
        """Reduce the gradients of the unit's trained parameters."""
        layout = self._unit.reduce_layout(input_tensor.dtype)
        key = self._key(GRADS, self.num_reductions)
        traffic = self._traffic(layout, group)
        collectives.reduce_scatter(output_tensor, input_tensor, traffic, key, op)
        self.num_reductions += 1


class CompressedAllGather(_Socket):
    """Weights on the wire in the recipe's format; the result is in FSDP2's ``param_dtype``."""

    def __init__(
        self,
        unit: Unit,
        recipe: Recipe,
        topology: Topology,
        ledger: Ledger,
        reduce_scatter: StockReduceScatter | CompressedReduceScatter,
    ) -> None:
        super().__init__(unit, recipe, topology, ledger)
        self._reduce_scatter = reduce_scatter

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> None:
        """Gather the unit's parameters; within the host, what was gathered before, as it is."""
        if group.size() != self._unit.world_size:
            # hpZ: the secondary shards hold decoded values, and the link within a host is wide
            stock.all_gather(output_tensor, input_tensor, self._topology.peers(group), self._ledger)
        elif input_tensor.dtype == torch.uint8:
            self._gather_mixed(output_tensor, input_tensor, group)
        else:
            self._check_compute_dtype(input_tensor.dtype)
            self._gather(output_tensor, input_tensor, self._unit.members, group)

    def _gather(
        self,
        output: Tensor,
        shard: Tensor,
        members: tuple[Member, ...],
        group: dist.ProcessGroup,
    ) -> None:
        layout = self._unit.gather_layout(members, shard.dtype)
        key = self._key(WEIGHTS, self._reduce_scatter.num_reductions)
        collectives.all_gather(output, shard, self._traffic(layout, group), key)

    def _gather_mixed(self, output: Tensor, shard: Tensor, group: dist.ProcessGroup) -> None:
        """Gather parameters of several dtypes, which FSDP2 lays out as bytes, run by run."""
        rows = output.view(group.size(), -1)
        start = 0
        for dtype, members in _runs(self._unit.members, self._buffer_dtypes(len(shard))):
            numel = sum(member.piece_numel for member in members)
            stop = start + numel * dtype.itemsize
            # a copy: bytes at an odd offset cannot be viewed as floats
            piece = shard[start:stop].clone().view(dtype)
            whole = torch.empty(group.size() * numel, dtype=dtype, device=shard.device)
            if dtype in CAST_NAMES:
                self._gather(whole, piece, members, group)
            else:
                stock.all_gather(whole, piece, self._topology.peers(group), self._ledger)
            rows[:, start:stop].copy_(whole.view(torch.uint8).view(group.size(), -1))
            start = stop

    def _buffer_dtypes(self, slot_bytes: int) -> list[torch.dtype]:
        """The dtype of every parameter in a buffer of bytes: its own, or the one it is cast to."""
        for param_dtype in (None, torch.bfloat16, torch.float32, torch.float16):
            dtypes = [
                param_dtype if param_dtype and member.dtype.is_floating_point else member.dtype
                for member in self._unit.members
            ]
            sizes = zip(self._unit.members, dtypes, strict=True)
            if sum(member.piece_numel * dtype.itemsize for member, dtype in sizes) == slot_bytes:
                return dtypes
        raise ConfigError(
            f"the {slot_bytes} bytes that FSDP2 gathers for module {self._unit.name or '(root)'} "
            "do not match its parameters; attach compression again after changing them"
        )

    def _check_compute_dtype(self, dtype: torch.dtype) -> None:
        if self._recipe.strict and CAST_NAMES.get(dtype) != self._recipe.compute:
            raise ConfigError(
                f"FSDP2 gathers {dtype} but the recipe says compute={self._recipe.compute}: wrap "
                "the model with MixedPrecisionPolicy(param_dtype=...) to match, or change the "
                "recipe's compute"
            )


def _runs(
    members: tuple[Member, ...], dtypes: list[torch.dtype]
) -> list[tuple[torch.dtype, tuple[Member, ...]]]:
    """Consecutive members whose elements have the same dtype in the buffer."""
    pairs = itertools.groupby(zip(dtypes, members, strict=True), key=lambda pair: pair[0])
    return [(dtype, tuple(member for _, member in run)) for dtype, run in pairs]


def attach(unit: Unit, recipe: Recipe, topology: Topology, ledger: Ledger) -> None:
    """Plug a unit's two sockets in.

    An uncompressed recipe runs through PyTorch's own collectives, counted. Once one direction is
    compressed both run through ours, a format as wide as the buffer being sent as it is.

    Args:
        unit: one FSDP2 module.
        recipe: what travels in which format.
        topology: which ranks share a host.
        ledger: where bytes are recorded.
    """
    module = unit.module
    reduce_scatter: StockReduceScatter | CompressedReduceScatter
    all_gather: StockAllGather | CompressedAllGather
    if recipe.is_uncompressed:
        reduce_scatter = StockReduceScatter(unit, recipe, topology, ledger)
        all_gather = StockAllGather(unit, recipe, topology, ledger)
    else:
        # Without this a parameter that one rank did not use is missing from its buffer only,
        # and the ranks' buffers no longer match. FSDP2 then fills in zero gradients.
        module.set_reduce_scatter_unused_params(True)
        reduce_scatter = CompressedReduceScatter(unit, recipe, topology, ledger)
        all_gather = CompressedAllGather(unit, recipe, topology, ledger, reduce_scatter)
    module.set_custom_all_gather(all_gather)  # type: ignore[arg-type]  # private base class
    module.set_custom_reduce_scatter(reduce_scatter)  # type: ignore[arg-type]
