"""Floats to another width, where what is finite stays finite."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["narrow", "narrow_into", "stretches"]

# Elements that stay in a near cache between being looked at and being converted.
_STRETCH_ELEMENTS = 2**18


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


def narrow_into(source: Tensor, target: Tensor) -> None:
    """`narrow` at about the speed of a copy, with no memory the size of the input.

    On a CPU almost every stretch turns out to hold neither NaN nor anything beyond the range of the
    target, and then a plain conversion is right. Looking costs a wait on an accelerator, where the
    general formula is cheap.

    Args:
        source: floats, 1-D and contiguous.
        target: floats, as many.
    """
    if source.dtype == target.dtype:
        target.copy_(source)
    elif source.device.type != "cpu":
        target.copy_(narrow(source, target.dtype))
    else:
        for some, place in zip(stretches(source), stretches(target), strict=True):
            place.copy_(some if _is_plain(some, target.dtype) else narrow(some, target.dtype))


def stretches(values: Tensor) -> tuple[Tensor, ...]:
    """Views of consecutive elements, short enough to stay in a near cache."""
    return torch.split(values, _STRETCH_ELEMENTS)


def _is_plain(values: Tensor, dtype: torch.dtype) -> bool:
    lowest, highest = (extreme.item() for extreme in values.aminmax())
    largest = torch.finfo(dtype).max
    return -largest <= lowest and highest <= largest  # comparing with NaN is false
