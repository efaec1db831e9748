"""Gram-Schmidt and outer products on CPUs, as in `thinwire.wire.factors`, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from thinwire.wire.kernels.compiled import entry, loop

__all__ = ["add_outer_products", "orthonormal"]

# Columns of which a row of every factor stays in the nearest cache.
_TILE_COLUMNS = 2048


def orthonormal(scaled: Tensor, noise: float) -> Tensor:
    """Vectors at right angles that span the same space as ``scaled``.

    Args:
        scaled: float32, [factors, numel], contiguous, on a CPU.
        noise: a vector that is this much shorter without the others becomes zero.
    """
    result = scaled.new_zeros(scaled.shape)
    scratch = scaled.new_empty(scaled.shape[1])
    _orthonormalize(scaled.numpy(), result.numpy(), scratch.numpy(), np.float32(noise))
    return result


def add_outer_products(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add ``left[i]`` times ``right[i]`` to a matrix, factor after factor.

    Args:
        total: float32, [rows, columns], contiguous, on a CPU.
        left: float32, [factors, rows], contiguous.
        right: float32, [factors, columns], contiguous.
    """
    _add_products(total.numpy(), left.numpy(), right.numpy())


@entry
def _orthonormalize(vectors: Any, result: Any, scratch: Any, noise: Any) -> None:
    for index in range(vectors.shape[0]):
        vector = result[index]
        vector[:] = vectors[index]
        length = np.sqrt(_sum_of_products(vector, vector, scratch))
        for _ in range(2):
            overlaps = np.empty(index, np.float32)
            for other in range(index):
                overlaps[other] = _sum_of_products(result[other], vector, scratch)
            for other in range(index):
                earlier, overlap = result[other], overlaps[other]
                for i in range(vector.size):
                    vector[i] -= earlier[i] * overlap
        left_over = np.sqrt(_sum_of_products(vector, vector, scratch))
        is_noise = left_over <= length * noise
        for i in range(vector.size):
            vector[i] = np.float32(0) if is_noise else vector[i] / left_over


@loop
def _sum_of_products(one: Any, other: Any, scratch: Any) -> Any:
    """Folded in halves: an order of summation that also has many lanes."""
    numel = one.size
    for i in range(numel):
        scratch[i] = one[i] * other[i]
    while numel > 1:
        half = (numel + 1) // 2
        for i in range(numel - half):
            scratch[i] += scratch[half + i]
        numel = half
    return scratch[0]


@entry
def _add_products(total: Any, left: Any, right: Any) -> None:
    rows, columns = total.shape
    num_factors = left.shape[0]
    for start in range(0, columns, _TILE_COLUMNS):
        stop = min(start + _TILE_COLUMNS, columns)
        for row in range(rows):
            target = total[row, start:stop]
            # two at a time: what is added up is read and written half as often
            for index in range(0, num_factors - 1, 2):
                one, other = left[index, row], left[index + 1, row]
                ones, others = right[index, start:stop], right[index + 1, start:stop]
                for i in range(target.size):
                    target[i] = (target[i] + one * ones[i]) + other * others[i]
            if num_factors % 2:
                one, ones = left[num_factors - 1, row], right[num_factors - 1, start:stop]
                for i in range(target.size):
                    target[i] += one * ones[i]
