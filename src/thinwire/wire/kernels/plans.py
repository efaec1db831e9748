"""A tensor and its payload as numbers, for a compiled loop."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from thinwire.formats import WireFormat
from thinwire.wire.kernels.halves import BFLOAT16, FLOAT16, FLOAT32
from thinwire.wire.kernels.streaming import last_level_cache_bytes
from thinwire.wire.kernels.tiles import Plan
from thinwire.wire.reference.extremes import num_clipped

__all__ = ["kind_of", "plan_of"]

_KINDS = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.float16: FLOAT16}


def kind_of(values: Tensor) -> int:
    """How the elements of a tensor are stored."""
    return _KINDS[values.dtype]


def plan_of(fmt: WireFormat, values: Tensor) -> Plan:
    """Where things lie in ``values`` and in its payload."""
    return _plan_of(fmt, values.numel(), values.dtype)


@lru_cache(maxsize=4096)  # the parameters of a model come again in every step
def _plan_of(fmt: WireFormat, numel: int, dtype: torch.dtype) -> Plan:
    assert fmt.block is not None
    layout = fmt.layout(numel)
    return Plan(
        numel=numel,
        block=fmt.block,
        kind=_KINDS[dtype],
        bits=fmt.bits,
        rotates="hadamard" in fmt.options,
        streams=numel * dtype.itemsize > last_level_cache_bytes(),
        num_blocks=layout.num_blocks,
        block_bytes=fmt.code_bytes(fmt.block),
        scale_bytes=fmt.scale_bytes,
        clipped=num_clipped(fmt.percentile, fmt.block),
        clipped_last=num_clipped(fmt.percentile, numel % fmt.block),
        scales_at=layout.scales_at,
        zeros_at=layout.zeros_at,
        codes_at=layout.codes_at,
        codes_end=layout.codes_end,
    )
