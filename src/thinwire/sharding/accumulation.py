"""Accumulation: several micro-batches for one optimizer step, said the same way in every stage.

    for index, batch in enumerate(batches):
        with thinwire.accumulate(model, is_last=index == len(batches) - 1):
            (model(batch) / len(batches)).backward()
    optimizer.step()

What a micro-batch that is not the last does is the recipe's ``accumulate``:

    sync   its gradients are reduced at once, and the reduced ones add up: stages 2 and 3 keep a
           share of them, and send in every micro-batch
    keep   its gradients stay whole on every rank and add up there; only the sum is reduced: they
           cross the wire once a step, and in stages 1 and 2 weights do too
    within its gradients are reduced within the host, and what the ranks of a place will own adds up
           there: under ``hybrid`` a share, otherwise a share for every host; only the sum crosses
           hosts, once a step

Stage 1 is ``keep`` by definition: gradients that are reduced at once and kept as shares are stage 2
(arXiv 1910.02054, section 5).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from thinwire.errors import ConfigError
from thinwire.sharding.attach import compression_of
from thinwire.sharding.compression import Compression

__all__ = ["accumulate"]


@contextlib.contextmanager
def accumulate(model: nn.Module, *, is_last: bool) -> Iterator[None]:
    """Forward and backward of one of the micro-batches of an optimizer step.

    Not a collective call by itself, but every rank must pass the same ``is_last``.

    Args:
        model: what ``shard`` returned, or ``compress`` was called on.
        is_last: whether the optimizer steps after this one. Afterwards the model reduces again in
            every backward pass, as it does outside of this block.

    Raises:
        ConfigError: ``is_last`` is neither true nor false.
        StateError: the model was neither sharded nor compressed by thinwire.
    """
    compression = compression_of(model)
    if not isinstance(is_last, bool):
        raise ConfigError(
            f"thinwire.accumulate: is_last={is_last!r} is neither True nor False; pass for example "
            "is_last=index == num_micro_batches - 1"
        )
    recipe = compression.recipe
    if is_last or recipe.accumulate == "sync":
        yield
    elif recipe.accumulate == "within":
        with _held_within(compression):
            yield
    elif isinstance(model, DistributedDataParallel):
        with model.no_sync():
            yield
    elif isinstance(model, FSDPModule):
        with _kept(model, gathers_again=recipe.stage == 3):
            yield
    else:
        yield  # local steps: between two meetings nothing is reduced anyway


@contextlib.contextmanager
def _held_within(compression: Compression) -> Iterator[None]:
    """Have the averages across hosts wait for the last micro-batch."""
    compression.stays_within = True
    try:
        yield
    finally:
        compression.stays_within = False


@contextlib.contextmanager
def _kept(model: FSDPModule, *, gathers_again: bool) -> Iterator[None]:
    """Have FSDP2 keep gradients whole and, unless they are gathered again, weights too."""
    model.set_requires_gradient_sync(False)
    model.set_reshard_after_backward(gathers_again)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)
        model.set_reshard_after_backward(True)
