"""What a reduction does to the fp32 sum: the operations that FSDP2 and DDP pass."""

from __future__ import annotations

import math

import torch.distributed as dist
from torch import Tensor

from thinwire.errors import ConfigError

__all__ = ["ReduceOp", "finish_sum", "fixed_divisor"]

ReduceOp = dist.ReduceOp | dist.ReduceOp.RedOpType


def finish_sum(total: Tensor, op: ReduceOp, size: int) -> None:
    """Turn the sum over the ranks into what ``op`` asks for, in place.

    AVG divides by the number of ranks, never by the number of elements. PREMUL_SUM multiplies by
    its factor; a factor common to all ranks may as well be applied after the sum.

    Raises:
        ConfigError: ``op`` is none of SUM, AVG and PREMUL_SUM.
    """
    kind, factor = (op, None) if isinstance(op, dist.ReduceOp.RedOpType) else _parts_of(op)
    if kind == dist.ReduceOp.SUM:
        return
    if kind == dist.ReduceOp.AVG:
        total.div_(size)
    elif kind == dist.ReduceOp.PREMUL_SUM and factor is not None:
        total.mul_(factor)
    else:
        raise ConfigError(
            f"a compressed reduction cannot do {op}: use SUM, AVG or PREMUL_SUM, "
            "or leave the collective uncompressed"
        )


def fixed_divisor(op: ReduceOp) -> float | None:
    """By what a sum is divided in the end, whatever the number of ranks.

    Returns:
        ``None`` for AVG, which divides by the number of ranks. NaN for SUM, the operation with
        which FSDP2 divides by itself, before and after (fp16, or
        ``set_force_sum_reduction_for_comms``).
    """
    kind, factor = (op, None) if isinstance(op, dist.ReduceOp.RedOpType) else _parts_of(op)
    if kind == dist.ReduceOp.AVG:
        return None
    return math.nan if factor is None else 1 / factor


def _parts_of(op: dist.ReduceOp) -> tuple[dist.ReduceOp.RedOpType, float | None]:
    """The operation and the factor of PREMUL_SUM; torch keeps both in the pickled state only."""
    parts: tuple[dist.ReduceOp.RedOpType, float | None] = op.__getstate__()  # type: ignore[assignment]
    return parts
