"""What a reduction does to the fp32 sum: the operations that FSDP2 and DDP pass."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from thinwire.errors import ConfigError

__all__ = ["ReduceOp", "finish_sum"]

ReduceOp = dist.ReduceOp | dist.ReduceOp.RedOpType


def finish_sum(total: Tensor, op: ReduceOp, size: int) -> None:
    """Turn the sum over the ranks into what ``op`` asks for, in place.

    AVG divides by the number of ranks, never by the number of elements. PREMUL_SUM multiplies by
    its factor; a factor common to all ranks may as well be applied after the sum.

    Raises:
        ConfigError: ``op`` is none of SUM, AVG and PREMUL_SUM.
    """
    kind = op if isinstance(op, dist.ReduceOp.RedOpType) else op.__getstate__()[0]
    if kind == dist.ReduceOp.SUM:
        return
    if kind == dist.ReduceOp.AVG:
        total.div_(size)
    elif kind == dist.ReduceOp.PREMUL_SUM:
        total.mul_(op.__getstate__()[1])  # the only place where torch keeps the factor
    else:
        raise ConfigError(
            f"a compressed reduction cannot do {op}: use SUM, AVG or PREMUL_SUM, "
            "or leave the collective uncompressed"
        )
