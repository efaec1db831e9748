"""DDP's socket: the communication hook that reduces one bucket of gradients.

Note: buckets. DDP rebuilds its buckets after the first step and users set their size, so nothing
here is keyed by bucket: every parameter is cut into W pieces by itself, and its random numbers are
keyed by its name. The result does not depend on how parameters were grouped.
"""

# no `from __future__ import annotations`: DDP inspects the hook's annotations, which must be types

import functools
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # has no stub
from torch.nn.parallel import DistributedDataParallel

from thinwire.comm import collectives, stock
from thinwire.comm.collectives import Traffic
from thinwire.comm.layout import Piece, ShardLayout, even_piece_numel
from thinwire.comm.ledger import Ledger
from thinwire.comm.sender import Job, run_now
from thinwire.comm.topology import Topology
from thinwire.sharding.compression import Compression
from thinwire.sharding.units import cast_format
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

    With a sender the buckets travel beside backward; DDP waits for their futures at its end.

    Args:
        model: the DDP module.
        compression: what all sockets of the model share.
    """

    def __init__(self, model: DistributedDataParallel, compression: Compression) -> None:
        self._recipe, self._ledger = compression.recipe, compression.ledger
        self._sender = compression.sender
        self._peers = compression.topology.peers(model.process_group)
        self._names = {id(p): name for name, p in model.module.named_parameters()}
        self._layouts: dict[tuple[int, ...], ShardLayout] = {}
        self._num_steps = 0

    def __call__(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Average one bucket over the ranks."""
        layout, values = self._layout(bucket), bucket.buffer()
        job = self._average(bucket.gradients(), values, layout, self._num_steps)
        if bucket.is_last():
            self._num_steps += 1
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        if self._sender is None:
            run_now(job)
            future.set_result(values)
        else:
            self._sender.submit(job, functools.partial(_settle, future, values))
        return future

    def _average(
        self, gradients: list[Tensor], values: Tensor, layout: ShardLayout, step: int
    ) -> Job:
        slots = _deal_out(gradients, values, layout)
        key = Key(seed=self._recipe.seed, step=step, parameter="", rank=self._peers.rank)
        traffic = Traffic(layout, self._peers, self._ledger)
        yield from collectives.all_reduce(slots.view(-1), traffic, key, dist.ReduceOp.AVG)
        _collect(gradients, layout, slots)

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
        fmt = cast_format(dtype) if exact else self._recipe.grad_format
        return Piece(
            name=name,
            numel=parameter.numel(),
            piece_numel=even_piece_numel(parameter.numel(), self._peers.size, fmt.block or 1),
            format=fmt,
        )


def _settle(
    future: torch.futures.Future[Tensor], values: Tensor, error: BaseException | None
) -> None:
    if error is None:
        future.set_result(values)
    else:
        future.set_exception(error)  # type: ignore[arg-type]  # the stub has the wrong type


def _deal_out(gradients: list[Tensor], values: Tensor, layout: ShardLayout) -> Tensor:
    """A bucket's gradients as a matrix of W slots; padding is zero."""
    slots: Tensor = values.new_zeros((layout.world_size, layout.slot_numel))
    for rank, start, flat, piece in _pieces(gradients, layout):
        first, numel = rank * piece.piece_numel, piece.real_numel(rank)
        slots[rank, start : start + numel].copy_(flat[first : first + numel])
    return slots


def _collect(gradients: list[Tensor], layout: ShardLayout, slots: Tensor) -> None:
    """The inverse of :func:`_deal_out`, into the bucket."""
    for rank, start, flat, piece in _pieces(gradients, layout):
        first, numel = rank * piece.piece_numel, piece.real_numel(rank)
        flat[first : first + numel].copy_(slots[rank, start : start + numel])


def _pieces(
    gradients: list[Tensor], layout: ShardLayout
) -> Iterator[tuple[int, int, Tensor, Piece]]:
    """For every gradient and rank: the rank, the piece's place in a slot, the flat gradient."""
    start = 0
    for gradient, piece in zip(gradients, layout.pieces, strict=True):
        for rank in range(layout.world_size):
            yield rank, start, gradient.view(-1), piece
        start += piece.piece_numel


def attach(model: DistributedDataParallel, compression: Compression) -> None:
    """Register the communication hook that a recipe asks for.

    Args:
        model: the DDP module; it must not have a hook yet.
        compression: what all sockets of the model share.
    """
    hook = (
        StockHook(model, compression.topology, compression.ledger)
        if compression.recipe.is_uncompressed
        else CompressedHook(model, compression)
    )
    model.register_comm_hook(hook, _call_hook)


def _call_hook(
    hook: StockHook | CompressedHook, bucket: GradBucket
) -> torch.futures.Future[Tensor]:
    """DDP passes the state it was given, here the hook itself, before the bucket."""
    return hook(bucket)
