"""DDP's socket: the communication hook that reduces one bucket of gradients.

Note: buckets. DDP rebuilds its buckets after the first step and users set their size, so nothing
here is keyed by bucket: every parameter is averaged by itself, and its random numbers, residuals
and late gradients are keyed by its name. The result does not depend on how they were grouped.
"""

# no `from __future__ import annotations`: DDP inspects the hook's annotations, which must be types

import functools

import torch
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # has no stub
from torch.nn.parallel import DistributedDataParallel

from thinwire.comm import stock
from thinwire.errors import ConfigError, StateError
from thinwire.sharding.averages import average_over
from thinwire.sharding.compression import Compression, in_backward
from thinwire.sharding.ddp_buffers import attach_buffers
from thinwire.sharding.sliced import recipe_pieces
from thinwire.sharding.units import CAST_NAMES
from thinwire.wire.key import Key

__all__ = ["attach"]


class StockHook:
    """DDP's own all-reduce, counted.

    Args:
        model: the DDP module.
        compression: what all sockets of the model share.
    """

    def __init__(self, model: DistributedDataParallel, compression: Compression) -> None:
        self._peers = compression.topology.peers(model.process_group)
        self._compression = compression

    def __call__(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Average the bucket as DDP without a hook does, to the bit."""
        values = bucket.buffer()
        # DDP multiplies by the reciprocal before it sums; dividing would round differently
        values.mul_(1.0 / self._peers.size)
        reduction = stock.all_reduce(values, self._peers, self._compression.ledger)
        if in_backward():  # under Join there may be none
            self._compression.finish_with_backward(reduction)
        return reduction.future()


class CompressedHook:
    """Gradients on the wire in the recipe's format, averaged in fp32.

    With a sender the buckets travel beside backward; DDP waits for their futures at its end. With
    ``staleness=1`` what DDP gets are the averages of the step before, and those of the present one
    have until the same bucket comes again. That takes 4 bytes per parameter, and while a bucket
    travels 4 more for each of its elements.

    Args:
        model: the DDP module.
        compression: what all sockets of the model share.
    """

    def __init__(self, model: DistributedDataParallel, compression: Compression) -> None:
        self._compression = compression
        self._peers = compression.topology.peers(model.process_group)
        self._names = {id(p): name for name, p in model.module.named_parameters()}
        self._average = average_over(self._peers, compression)

    def __call__(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Average one bucket over the ranks."""
        names = (self._names[id(parameter)] for parameter in bucket.parameters())
        gradients = dict(zip(names, bucket.gradients(), strict=True))
        key = self._key(bucket)
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        late, sender = self._compression.late, self._compression.sender
        if late is not None:
            late.wait(gradients)
            # DDP uses the bucket again before what is in it has travelled
            reduced = {name: gradient.clone() for name, gradient in gradients.items()}
            ticket = self._compression.reduce_late(self._average.job(reduced, key))
            late.exchange(gradients, reduced, ticket)
            future.set_result(bucket.buffer())
        elif sender is None or not in_backward():
            # under Join a rank that has run out of data takes part without a backward pass
            self._compression.reduce_now(self._average.job(gradients, key))
            future.set_result(bucket.buffer())
        else:
            settle = functools.partial(_settle, future, bucket.buffer())
            self._compression.reduce_later(self._average.job(gradients, key), settle)
        return future

    def _key(self, bucket: GradBucket) -> Key:
        """Names the random numbers of this pass; all buckets of a pass share it."""
        counters = self._compression.counters
        step = counters.count("passes") if bucket.is_last() else counters["passes"]
        return Key(seed=self._compression.recipe.seed, step=step, rank=self._peers.rank)


def _settle(
    future: torch.futures.Future[Tensor], values: Tensor, _error: BaseException | None
) -> None:
    future.set_result(values)


def attach(model: DistributedDataParallel, compression: Compression) -> None:
    """Register the communication hook that a recipe asks for.

    Args:
        model: the DDP module; it must not have a hook yet.
        compression: what all sockets of the model share.
    """
    trained = ((n, p) for n, p in model.module.named_parameters() if p.requires_grad)
    odd = [name for name, parameter in trained if parameter.dtype not in CAST_NAMES]
    if odd and not compression.recipe.is_uncompressed:
        raise ConfigError(
            f"recipe {compression.recipe.name}: gradients of parameter {odd[0]} are not in fp32, "
            "bf16 or fp16, and cannot be compressed; convert it, freeze it, or use grads=fp32"
        )
    peers = compression.topology.peers(model.process_group)
    if peers.size < compression.topology.size:
        compression.num_shards = 0  # several groups, each with gradients of its own
    compression.adapt(recipe_pieces(model.module, compression.recipe, peers.size), peers)
    hook = (
        StockHook(model, compression)
        if compression.recipe.is_uncompressed
        else CompressedHook(model, compression)
    )
    try:
        model.register_comm_hook(hook, _call_hook)
    except RuntimeError as error:
        raise ConfigError(
            f"the DDP module takes no communication hook: {error}; pass one that has none yet"
        ) from error
    attach_buffers(model, compression.topology, compression.ledger)
    frozen = {n: p for n, p in model.module.named_parameters() if not p.requires_grad}
    if frozen:
        model.register_forward_pre_hook(functools.partial(_refuse_unfrozen, frozen))


def _refuse_unfrozen(frozen: dict[str, nn.Parameter], _model: nn.Module, _inputs: object) -> None:
    """DDP made no bucket for what was frozen, so every rank would train it on its own."""
    trained = [name for name, parameter in frozen.items() if parameter.requires_grad]
    if trained:
        raise StateError(
            f"parameter {trained[0]} was frozen when the model was wrapped, so DDP does not reduce "
            "its gradient, and ranks would drift apart: unfreeze it before thinwire.shard, or "
            "build the model anew"
        )


def _call_hook(
    hook: StockHook | CompressedHook, bucket: GradBucket
) -> torch.futures.Future[Tensor]:
    """DDP passes the state it was given, here the hook itself, before the bucket."""
    return hook(bucket)
