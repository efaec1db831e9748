"""Factors of a matrix: a few vectors to a side, whose outer products add up to it.

    matrix [rows, columns]  ~  left.T @ right      left [factors, rows], right [factors, columns]

Every vector lies in one piece, as it does in a payload. All arithmetic here is element by element
in a fixed order, without a matrix product whose order of summation a processor's library chooses:
ranks that start from the same bits end with the same bits, whatever machines they run on. On CPUs
compiled loops do the same.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from thinwire.wire.codec import mark_written
from thinwire.wire.key import Key, key_tensor, random_halves

__all__ = ["add_outer_products", "orthonormal", "row_groups", "start_factors", "unit_scaled"]

# Outer products are added up in pieces that stay in a processor's cache.
_GROUP_ELEMENTS = 2**16
_SMALLEST_EXPONENT = -126
# A vector that is this much shorter after the others were taken out of it is rounding noise.
_NOISE = 2.0**-18


def start_factors(num_factors: int, numel: int, device: torch.device) -> Tensor:
    """Numbers in (-1/2, 1/2) that depend on nothing but the shape: [factors, numel]."""
    key = key_tensor(Key(parameter="lowrank"), device)
    halves = random_halves(key, torch.arange(num_factors, device=device), numel)
    return (halves.float() + 0.5) / 65536 - 0.5


def unit_scaled(vectors: Tensor) -> Tensor:
    """Each vector times a power of two, which rounds nothing, so that its largest value is near 1.

    Zeros and vectors that are not finite stay what they are.

    Args:
        vectors: float32, [factors, numel].
    """
    largest = vectors.abs().amax(dim=1, keepdim=True)
    exponents = (largest.frexp().exponent - 1).clamp(min=_SMALLEST_EXPONENT)
    return vectors / torch.ldexp(torch.ones_like(largest), exponents)


def orthonormal(vectors: Tensor) -> Tensor:
    """Vectors of length one at right angles to each other that span the same space.

    Gram-Schmidt; clearing each vector of the earlier ones twice is enough in float32. A vector that
    the earlier ones already span becomes zero. One value that is not finite makes all of them NaN.

    Args:
        vectors: float32, [factors, numel].
    """
    scaled = unit_scaled(vectors)
    if vectors.device.type == "cpu" and vectors.numel():
        from thinwire.wire.kernels import factors  # compiled code: loaded when first needed

        result = factors.orthonormal(scaled.contiguous(), _NOISE)
    else:
        result = _orthonormalized(scaled)
    # adds zero, or NaN if there is an Inf or a NaN: scaled values cannot overflow their sum
    return result + scaled.sum() * 0.0


def _orthonormalized(scaled: Tensor) -> Tensor:
    """`orthonormal` of scaled vectors in plain torch, for any device."""
    result = torch.zeros_like(scaled)
    for index, vector in enumerate(scaled):
        length = _length(vector)
        for _ in range(2):
            overlaps = _sums(result[:index] * vector)
            for earlier, overlap in zip(result, overlaps, strict=False):
                vector = vector - earlier * overlap
        left_over = _length(vector)
        result[index] = (vector / left_over).masked_fill(left_over <= length * _NOISE, 0.0)
    return result


def row_groups(rows: int, columns: int) -> Iterator[slice]:
    """Consecutive rows of a matrix that are worth handling at once."""
    step = max(1, _GROUP_ELEMENTS // max(1, columns))
    for first in range(0, rows, step):
        yield slice(first, first + step)


def add_outer_products(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add ``left[i]`` times ``right[i]`` to a matrix, factor after factor.

    Args:
        total: float32, [rows, columns].
        left: float32, [factors, rows].
        right: float32, [factors, columns].
    """
    tensors = (total, left, right)
    if total.device.type == "cpu" and all(tensor.is_contiguous() for tensor in tensors):
        from thinwire.wire.kernels import factors  # as above

        factors.add_outer_products(*tensors)
        mark_written(total)
    else:
        _add_products(*tensors)


def _add_products(total: Tensor, left: Tensor, right: Tensor) -> None:
    """`add_outer_products` in plain torch, for any device and strides."""
    scratch = torch.empty_like(total)
    for rows_vector, columns_vector in zip(left, right, strict=True):
        torch.mul(rows_vector.unsqueeze(1), columns_vector, out=scratch)
        total.add_(scratch)


def _length(vector: Tensor) -> Tensor:
    # torch's own root of a float32 may be off by its last bit
    return _sums(vector * vector).double().sqrt().float()


def _sums(vectors: Tensor) -> Tensor:
    """The sum along the last dimension, by folding in halves; overwrites its argument."""
    numel = vectors.shape[-1]
    while numel > 1:
        half = (numel + 1) // 2
        vectors[..., : numel - half] += vectors[..., half:numel]
        numel = half
    return vectors[..., 0]
