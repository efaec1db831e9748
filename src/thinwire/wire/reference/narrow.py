"""Float32 to 16 bits, where what is finite stays finite."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["narrow"]


def narrow(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Round to nearest even; finite values beyond the range become the largest of ``dtype``.

    An overflow to Inf would spread over the whole sum on every rank. Inf stays Inf, and every NaN
    becomes the same NaN, whose bits would otherwise depend on the processor.
    """
    if values.dtype == dtype:
        return values
    rounded = values.to(dtype)
    overflowed = rounded.isinf() & values.isfinite()
    largest = torch.full_like(rounded, torch.finfo(dtype).max).copysign(rounded)
    return torch.where(overflowed, largest, rounded).masked_fill(values.isnan(), math.nan)
