"""DDP's socket: the communication hook that reduces one bucket of gradients.

Note: buckets. DDP rebuilds its buckets after the first step and users set their size, so nothing
here is keyed by bucket: every parameter is cut into W pieces by itself, and its random numbers are
keyed by its name. The result does not depend on how parameters were grouped.
"""

# no `from __future__ import annotations`: DDP inspects the hook's annotations, which must be types

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # has no stub
from torch.nn.parallel import DistributedDataParallel

from thinwire.comm import collectives, stock
from thinwire.comm.collectives import Traffic
from thinwire.comm.layout import Piece, ShardLayout, even_piece_numel
from thinwire.comm.ledger import Ledger
from thinwire.comm.topology import Topology
from thinwire.formats import parse_format
from thinwire.recipe import Recipe
from thinwire.sharding.units import CAST_NAMES
from thinwire.wire.key import Key

__all__ = ["attach"]


class StockHook:
    """DDP's own all-reduce, counted.

    Args:
        model: the DDP module.
        topology: which ranks share a host.
        ledger: where bytes are recorded.
    """

    def __init__(self, model: DistributedDataParallel, topology: Topology, ledger: Ledger) -> None:
        self._peers = topology.peers(model.process_group)
        self._ledger = ledger

    def __call__(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Average the bucket as DDP without a hook does, to the bit."""
        values = bucket.buffer()
        # DDP multiplies by the reciprocal before it sums; dividing would round differently
        values.mul_(1.0 / self._peers.size)
        return stock.all_reduce(values, self._peers, self._ledger)


class CompressedHook:
    """Gradients on the wire in the recipe's format, averaged in fp32.

    Args:
        model: the DDP module.
        recipe: what travels in which format.
        topology: which ranks share a host.
        ledger: where bytes are recorded.
    """

    def __init__(
        self, model: DistributedDataParallel, recipe: Recipe, topology: Topology, ledger: Ledger
    ) -> None:
        self._recipe = recipe
        self._peers = topology.peers(model.process_group)
        self._ledger = ledger
        self._names = {id(p): name for name, p in model.module.named_parameters()}
        self._layouts: dict[tuple[int, ...], ShardLayout] = {}
        self._num_steps = 0

    def __call__(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Average one bucket over the ranks."""
        layout = self._layout(bucket)
        slots = _deal_out(bucket, layout)
        key = Key(seed=self._recipe.seed, step=self._num_steps, parameter="", rank=self._peers.rank)
        traffic = Traffic(layout, self._peers, self._ledger)
        collectives.all_reduce(slots.view(-1), traffic, key, dist.ReduceOp.AVG)
        _collect(bucket, layout, slots)
        if bucket.is_last():
            self._num_steps += 1
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    def _layout(self, bucket: GradBucket) -> ShardLayout:
        parameters = bucket.parameters()
        identity = tuple(id(parameter) for parameter in parameters)
        if identity not in self._layouts:
            self._layouts[identity] = ShardLayout(
                (self._piece(parameter, bucket.buffer().dtype) for parameter in parameters),
                self._peers.size,
            )
        return self._layouts[identity]

    def _piece(self, parameter: Tensor, dtype: torch.dtype) -> Piece:
        name = self._names[id(parameter)]
        exact = self._recipe.travels_exactly(name, parameter.shape)
        fmt = parse_format(CAST_NAMES[dtype]) if exact else self._recipe.grad_format
        return Piece(
            name=name,
            numel=parameter.numel(),
            piece_numel=even_piece_numel(parameter.numel(), self._peers.size, fmt.block or 1),
            format=fmt,
        )


def _deal_out(bucket: GradBucket, layout: ShardLayout) -> Tensor:
    """The bucket's gradients as a matrix of W slots; padding is zero."""
    values = bucket.buffer()
    slots: Tensor = values.new_zeros((layout.world_size, layout.slot_numel))
    start = 0
    for gradient, piece in zip(bucket.gradients(), layout.pieces, strict=True):
        flat, stop = gradient.reshape(-1), start + piece.piece_numel
        for rank in range(layout.world_size):
            numel = piece.real_numel(rank)
            first = rank * piece.piece_numel
            slots[rank, start : start + numel].copy_(flat[first : first + numel])
        start = stop
    return slots


def _collect(bucket: GradBucket, layout: ShardLayout, slots: Tensor) -> None:
    """The inverse of :func:`_deal_out`, into the bucket."""
    start = 0
    for gradient, piece in zip(bucket.gradients(), layout.pieces, strict=True):
        for rank in range(layout.world_size):
            numel = piece.real_numel(rank)
            first = rank * piece.piece_numel
            source = slots[rank, start : start + numel]
            gradient.view(-1)[first : first + numel].copy_(source)
        start += piece.piece_numel


def attach(
    model: DistributedDataParallel, recipe: Recipe, topology: Topology, ledger: Ledger
) -> None:
    """Register the communication hook that a recipe asks for.

    Args:
        model: the DDP module; it must not have a hook yet.
        recipe: what travels in which format.
        topology: which ranks share a host.
        ledger: where bytes are recorded.
    """
    hook = (
        StockHook(model, topology, ledger)
        if recipe.is_uncompressed
        else CompressedHook(model, recipe, topology, ledger)
    )
    model.register_comm_hook(hook, _call_hook)


def _call_hook(
    hook: StockHook | CompressedHook, bucket: GradBucket
) -> torch.futures.Future[Tensor]:
    """DDP passes the state it was given, here the hook itself, before the bucket."""
    return hook(bucket)
