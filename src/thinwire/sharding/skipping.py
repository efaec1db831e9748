"""Steps that all ranks skip, as after a gradient that is not finite."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from thinwire.errors import StateError
from thinwire.sharding.attach import compression_of

__all__ = ["skip_step"]


def skip_step(model: nn.Module) -> None:
    """Say that the step under way is not taken. Every rank must say so.

    A rank whose own gradients were finite has renewed its residuals by then, and what it sent is
    thrown away. This returns residuals, and the counters that random numbers are keyed by, to what
    they were before the step, and forgets what early micro-batches of it left (``accumulate``): the
    run goes on as if the batch had never been. What ends a step is the optimizer's own ``step``, so
    call this in its place, after the last micro-batch or instead of those to come, along with the
    optimizer's ``zero_grad``. A forward or backward pass that raised is no hindrance under FSDP2 if
    it did on every rank after the same reductions; DDP itself does not go on after one.

    Residuals stay as they are under ``residual_undo=false``. Under ``staleness=1``, where gradients
    are those of an earlier step, all stays but what early micro-batches left.

    Args:
        model: what ``shard`` returned, or ``compress`` was called on.

    Raises:
        StateError: the model was neither sharded nor compressed by thinwire, or this version of
            FSDP2 hides what it keeps of a step.
    """
    compression_of(model).undo_step()
    try:
        for root in _fsdp_roots(model):
            # nothing is known of the pass before the first one
            if root._get_fsdp_state()._is_root is not None:
                root.reset_iter_state()
        for module in model.modules():
            if isinstance(module, FSDPModule):
                _drop_kept(module)
    except AttributeError as error:
        raise StateError(
            "thinwire.skip_step cannot find what FSDP2 keeps of a step that is given up in torch "
            f"{torch.__version__}; install torch 2.13"
        ) from error


def _fsdp_roots(module: nn.Module) -> Iterator[FSDPModule]:
    """The FSDP2 modules that are in no other one."""
    if isinstance(module, FSDPModule):
        yield module
        return
    for child in module.children():
        yield from _fsdp_roots(child)


def _drop_kept(module: FSDPModule) -> None:
    """Forget the whole gradients that early micro-batches, or a pass that raised, left in FSDP2.

    It keeps them where neither ``zero_grad`` nor anything else that is public reaches them.
    """
    module.reshard()
    groups = module._get_fsdp_state()._fsdp_param_groups
    for parameter in (p for group in groups for p in group.fsdp_params):
        # where it has another dtype than weights; read first, for a write never fails
        if parameter.unsharded_accumulated_grad is not None:
            parameter.unsharded_accumulated_grad = None
        whole = getattr(parameter, "_unsharded_param", None)
        if whole is not None:  # there is none before the first gather
            whole.grad = None
