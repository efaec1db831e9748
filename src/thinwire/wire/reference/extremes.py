"""How far the values of a block reach, or, with ``+clip``, all but the outermost of them.

``+clip=P`` cuts off the largest ``100 - P`` percent of a block's magnitudes, rounded down to whole
elements, and with ``+asym`` half of that number at either end. What is cut off is encoded as the
outermost code.
"""

from __future__ import annotations

import math
from decimal import Decimal

from torch import Tensor

from thinwire.formats import WireFormat

__all__ = ["magnitudes_of", "num_clipped", "range_of"]


def num_clipped(percentile: Decimal | None, width: int) -> int:
    """How many of ``width`` elements lie beyond the percentile: at most half of them."""
    return 0 if percentile is None else math.floor((100 - percentile) * width / 100)


def magnitudes_of(values: Tensor, fmt: WireFormat) -> Tensor:
    """The magnitude that each row's scale must cover; not finite where the row is not.

    Args:
        values: float32, [rows, width].
    """
    magnitudes = values.abs()
    largest = magnitudes.amax(dim=1)
    width = values.shape[1]
    clipped = num_clipped(fmt.percentile, width)
    if not clipped:
        return largest
    covered = magnitudes.kthvalue(width - clipped, dim=1).values
    return covered.where(largest.isfinite(), largest)


def range_of(values: Tensor, fmt: WireFormat) -> tuple[Tensor, Tensor]:
    """The lowest and the highest value that each row's codes must cover."""
    width = values.shape[1]
    clipped = num_clipped(fmt.percentile, width) // 2
    if not clipped:
        return values.aminmax(dim=1)
    lowest = values.kthvalue(1 + clipped, dim=1).values
    return lowest, values.kthvalue(width - clipped, dim=1).values
