"""DDP's socket: the communication hook that reduces one bucket of gradients.

Note: buckets. DDP rebuilds its buckets after the first step and users set their size, so nothing
here is keyed by bucket: every parameter is cut into W pieces by itself, and its random numbers and
residuals are keyed by its name. The result does not depend on how parameters were grouped.
"""

# no `from __future__ import annotations`: DDP inspects the hook's annotations, which must be types

import functools

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # has no stub
from torch.nn.parallel import DistributedDataParallel

from thinwire.comm import collectives, stock
from thinwire.comm.collectives import Traffic
from thinwire.comm.layout import ShardLayout
from thinwire.comm.ledger import Ledger
from thinwire.comm.sender import Job, run_now
from thinwire.comm.topology import Topology
from thinwire.errors import ConfigError
from thinwire.sharding.compression import Compression
from thinwire.sharding.slots import collect, deal_out, even_piece
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

    With a sender the buckets travel beside backward; DDP waits for their futures at its end.

    Args:
        model: the DDP module.
        compression: what all sockets of the model share.
    """

    def __init__(self, model: DistributedDataParallel, compression: Compression) -> None:
        self._recipe, self._ledger = compression.recipe, compression.ledger
        self._sender, self._feedback = compression.sender, compression.feedback
        self._peers = compression.topology.peers(model.process_group)
        self._names = {id(p): name for name, p in model.module.named_parameters()}
        self._layouts: dict[tuple[int, ...], ShardLayout] = {}
        self._num_steps = 0

    def __call__(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Average one bucket over the ranks."""
        layout, values = self._layout(bucket), bucket.buffer()
        job = self._average(bucket.gradients(), layout, self._num_steps)
        if bucket.is_last():
            self._num_steps += 1
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        if self._sender is None:
            run_now(job)
            future.set_result(values)
        else:
            self._sender.submit(job, functools.partial(_settle, future, values))
        return future

    def _average(self, gradients: list[Tensor], layout: ShardLayout, step: int) -> Job:
        slots = deal_out(gradients, layout)
        key = Key(seed=self._recipe.seed, step=step, parameter="", rank=self._peers.rank)
        traffic = Traffic(layout, self._peers, self._ledger, self._feedback)
        yield from collectives.all_reduce(slots.view(-1), traffic, key, dist.ReduceOp.AVG)
        collect(slots, gradients, layout)

    def _layout(self, bucket: GradBucket) -> ShardLayout:
        parameters = bucket.parameters()
        identity = tuple(id(parameter) for parameter in parameters)
        if identity not in self._layouts:
            dtype, size = bucket.buffer().dtype, self._peers.size
            self._layouts[identity] = ShardLayout(
                (
                    even_piece(self._names[id(p)], p.shape, dtype, self._recipe, size)
                    for p in parameters
                ),
                size,
            )
        return self._layouts[identity]


def _settle(
    future: torch.futures.Future[Tensor], values: Tensor, error: BaseException | None
) -> None:
    if error is None:
        future.set_result(values)
    else:
        future.set_exception(error)  # type: ignore[arg-type]  # the stub has the wrong type


def attach(model: DistributedDataParallel, compression: Compression) -> None:
    """Register the communication hook that a recipe asks for.

    Args:
        model: the DDP module; it must not have a hook yet.
        compression: what all sockets of the model share.
    """
    odd = [n for n, p in model.module.named_parameters() if p.dtype not in CAST_NAMES]
    if odd and not compression.recipe.is_uncompressed:
        raise ConfigError(
            f"recipe {compression.recipe.name}: gradients of parameter {odd[0]} are not in fp32, "
            "bf16 or fp16, and cannot be compressed; convert the model, or use recipe ddp"
        )
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
