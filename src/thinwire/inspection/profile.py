"""What a tensor is like before anything is done to it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Profile", "count_zeros", "pieces", "profile"]

# Sums run in float64 over pieces, so that no copy of the size of the tensor is made for them.
PIECE_ELEMENTS = 2**18


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Sums over the finite elements of a tensor, in float64.

    Attributes:
        numel: all elements.
        num_nonfinite: those that are NaN or infinite.
        num_zeros: those that are exactly zero.
        energy: the sum of squares.
        largest: the largest magnitude.
    """

    numel: int
    num_nonfinite: int
    num_zeros: int
    energy: float
    largest: float

    @property
    def rms(self) -> float:
        """The root of the mean square of the finite elements."""
        return math.sqrt(self.energy / max(1, self.numel - self.num_nonfinite))

    @property
    def zeros(self) -> float:
        """The share of zeros."""
        return self.num_zeros / self.numel


def profile(values: Tensor) -> Profile:
    """Look at every element once.

    Args:
        values: at least one element, of any shape and floating dtype.
    """
    num_nonfinite = num_zeros = 0
    energy = largest = 0.0
    for piece in pieces(values):
        is_finite = piece.isfinite()
        finite = piece if is_finite.all() else piece[is_finite]  # picking elements takes longest
        num_nonfinite += piece.numel() - finite.numel()
        num_zeros += count_zeros(piece)
        energy += float(finite.square().sum())
        largest = max(largest, float(finite.abs().max()) if finite.numel() else 0.0)
    return Profile(
        numel=values.numel(),
        num_nonfinite=num_nonfinite,
        num_zeros=num_zeros,
        energy=energy,
        largest=largest,
    )


def pieces(values: Tensor) -> Iterator[Tensor]:
    """Copies of the elements of a tensor in float64, 1-D, a few at a time."""
    for piece in torch.split(values.reshape(-1), PIECE_ELEMENTS):
        yield piece.to(torch.float64, copy=True)


def count_zeros(values: Tensor) -> int:
    """How many elements are exactly zero."""
    return values.numel() - int(values.count_nonzero())
