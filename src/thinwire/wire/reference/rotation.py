"""The rotation of ``+hadamard``: 32 elements at a time become 32 sums and differences of all.

An outlier is spread over its 32 neighbours, so that the largest magnitude of a block, which sets
the scale, comes closer to the typical one (SDP4Bit, arXiv 2410.15526, section 3.3). The matrix is
orthonormal and symmetric, thus its own inverse, and lengths are kept: an error made on rotated
values has the same length after rotating back.

    note [an eighth]
    A rotated value may be sqrt(32) times the largest one and overflow. Encoding therefore rotates
    an eighth of the values, which is exact, and decoding multiplies by eight at the end.

At the end of a tensor, fewer than 32 elements may be left over: they are not rotated.
"""

from __future__ import annotations

import torch
from torch import Tensor

from thinwire.families import ROTATED_ELEMENTS
from thinwire.wire.rotation import ROTATION_FACTOR

__all__ = ["rotate", "rotated", "unrotated"]


def rotate(rows: Tensor) -> Tensor:
    """Multiply runs of 32 elements of each row by the orthonormal Hadamard matrix.

    Args:
        rows: float32, [rows, width]; what is left over of ``width`` is returned as it is.
    """
    count, width = rows.shape
    whole = width - width % ROTATED_ELEMENTS
    values = rows[:, :whole] * ROTATION_FACTOR
    distance = 1
    while distance < ROTATED_ELEMENTS:
        pairs = values.view(count, whole // (2 * distance), 2, distance)
        first, second = pairs[:, :, 0], pairs[:, :, 1]
        values = torch.stack((first + second, first - second), dim=2).view(count, whole)
        distance *= 2
    return torch.cat((values, rows[:, whole:]), dim=1)


def rotated(rows: Tensor) -> Tensor:
    """What is encoded: see [an eighth]."""
    return rotate(rows * 0.125)


def unrotated(rows: Tensor) -> Tensor:
    """The inverse of `rotated`, up to rounding."""
    return rotate(rows) * 8.0
