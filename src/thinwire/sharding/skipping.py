"""Steps that all ranks skip, as after a gradient that is not finite."""

from __future__ import annotations

from torch import nn

from thinwire.sharding.attach import compression_of

__all__ = ["skip_step"]


def skip_step(model: nn.Module) -> None:
    """Say that the step whose gradients were just reduced is not taken. Every rank must say so.

    A rank whose own gradients were finite has renewed its residuals by then, and what it sent is
    thrown away. This returns residuals, and the counters that random numbers are keyed by, to what
    they were before the step: the run goes on as if the batch had never been. What ends a step is
    the optimizer's own ``step``, so call this in its place.

    Residuals stay as they are under ``residual_undo=false``, and everything does under
    ``staleness=1``, where the skipped gradients are those of an earlier step.

    Args:
        model: what ``shard`` returned, or ``compress`` was called on.

    Raises:
        StateError: the model was neither sharded nor compressed by thinwire.
    """
    compression_of(model).undo_step()
