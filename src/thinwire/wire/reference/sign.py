"""The family ``sign``: one bit per element and the block's mean magnitude.

Among all scales, the mean magnitude makes the squared error least: it is ``|x|^2 - n * mean^2``.
Biased, and meant to be used with error feedback (Karimireddy et al., arXiv 1901.09847).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from thinwire.formats import WireFormat
from thinwire.wire.reference.blocked import BlockedReference, EncodedRows, RandomRows
from thinwire.wire.scales import ScaleRule, divided

__all__ = ["SignReference"]

# Where the sum of magnitudes overflows, this part of each is summed. Blocks have up to 2**20.
_SMALL_PART = 2.0**-24


class SignReference(BlockedReference):
    """Keeps the sign bit of every element, that of a zero too."""

    def __init__(self, fmt: WireFormat) -> None:
        super().__init__(fmt)
        self._rule = ScaleRule.for_levels(reach=1.0, narrow="bf16scale" in fmt.options, up=False)

    def _encode_rows(self, values: Tensor, random: RandomRows, head: Tensor) -> EncodedRows:
        del random, head
        magnitudes = values.abs()
        width = values.shape[1]
        means = divided(fold(magnitudes), width)
        small = divided(fold(magnitudes * _SMALL_PART), width) / _SMALL_PART
        means = small.where(means.isinf(), means)
        scales = self._rule.round(means, magnitudes.isfinite().all(dim=1))
        codes = values.signbit().to(torch.uint8).masked_fill(scales.isnan().unsqueeze(1), 0)
        return EncodedRows(codes=codes, scales=scales)

    def _decode_rows(self, rows: EncodedRows, head: Tensor) -> Tensor:
        del head
        return (1.0 - 2.0 * rows.codes) * rows.scales.unsqueeze(1)


def fold(rows: Tensor) -> Tensor:
    """The sum of each row, formed by adding the second half to the first until one is left.

    This order is part of the format: it can be followed exactly on every device, at full speed.
    Rows are filled with zeros up to the next power of two.
    """
    width = rows.shape[1]
    half = 1 << max(0, width - 1).bit_length()
    sums = pad(rows, (0, half - width))
    while half > 1:
        half //= 2
        sums = sums[:, :half] + sums[:, half:]
    return sums.squeeze(1)
