"""Steps that all ranks skip, as after a gradient that is not finite."""

from __future__ import annotations

from torch import nn

from thinwire.sharding.accumulation import drop_kept
from thinwire.sharding.attach import compression_of

__all__ = ["skip_step"]


def skip_step(model: nn.Module) -> None:
    """Say that the step under way is not taken. Every rank must say so.

    A rank whose own gradients were finite has renewed its residuals by then, and what it sent is
    thrown away. This returns residuals, and the counters that random numbers are keyed by, to what
    they were before the step, and forgets what early micro-batches of it left (``accumulate``): the
    run goes on as if the batch had never been. What ends a step is the optimizer's own ``step``, so
    call this in its place, after the last micro-batch or instead of those to come, along with the
    optimizer's ``zero_grad``.

    Residuals stay as they are under ``residual_undo=false``. Under ``staleness=1``, where gradients
    are those of an earlier step, all stays but what early micro-batches left.

    Args:
        model: what ``shard`` returned, or ``compress`` was called on.

    Raises:
        StateError: the model was neither sharded nor compressed by thinwire, or this version of
            FSDP2 hides what early micro-batches left.
    """
    compression = compression_of(model)
    compression.undo_step()
    if compression.recipe.accumulate == "keep":
        drop_kept(model)
