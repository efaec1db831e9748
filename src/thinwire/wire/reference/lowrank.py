"""The family ``lowrank``: a matrix as the product of two thin ones (PowerSGD, arXiv 1905.13727).

1. ``right`` = random columns, the same on every rank and in every step
2. twice: ``left`` = orthonormal columns of ``matrix @ right``; ``right`` = ``matrix.T @ left``
3. decode: ``left @ right.T``, as the sum of outer products in their order

The paper takes one step of power iteration and starts from the last step's factor; a codec keeps no
state, and takes two. Biased, and meant to be used with error feedback.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from thinwire.formats import WireFormat
from thinwire.wire.codec import Codec
from thinwire.wire.key import Key, key_tensor, random_halves
from thinwire.wire.reference.narrow import narrow
from thinwire.wire.scales import FLOAT32_MAX

__all__ = ["LowRankReference", "orthonormal"]

_POWER_STEPS = 2
_GROUP_ELEMENTS = 2**20
_SMALLEST_EXPONENT = -126
# A column that is this much shorter after the others were taken out of it is rounding noise.
_NOISE = 2.0**-18


class LowRankReference(Codec):
    """For a format that knows the shape of its matrix. NaN and Inf spread over the whole matrix.

    Decoding gives the same bits everywhere. Encoding multiplies matrices, which other processors
    may round differently: the bytes repeat on one kind of machine only.
    """

    def __init__(self, fmt: WireFormat) -> None:
        super().__init__(fmt)
        self._layout = fmt.low_rank_layout()

    def _encode(self, x: Tensor, out: Tensor, key: Key) -> None:
        del key
        matrix = x.float().view(self._layout.rows, self._layout.columns)
        # Squares of large floats would overflow. A power of two scales without rounding.
        exponent = (matrix.abs().amax().frexp().exponent - 1).clamp(min=_SMALLEST_EXPONENT)
        unit = torch.ldexp(torch.ones_like(matrix[0, 0]), exponent)
        matrix = matrix / unit
        right = self._first_columns(x.device)
        for _ in range(_POWER_STEPS):
            left = orthonormal(matrix @ right)
            right = matrix.T @ left
        left_part, right_part = self._factors(out)
        # A right factor is up to sqrt(rows) times the largest value: the left one takes that over.
        balance = 2.0 ** math.ceil(math.log2(self._layout.rows) / 2)
        left_part.copy_(left.T * balance)
        right_part.copy_((right.T / balance * unit).clamp(-FLOAT32_MAX, FLOAT32_MAX))

    def _decode(self, payload: Tensor, out: Tensor) -> None:
        for rows in self._row_groups():
            target = self._matrix(out)[rows]
            target.copy_(narrow(self._product(payload, rows), out.dtype))

    def _decode_sum(self, payloads: Sequence[Tensor], out: Tensor) -> None:
        for rows in self._row_groups():
            target = self._matrix(out)[rows]
            target.copy_(self._product(payloads[0], rows))
            for payload in payloads[1:]:
                target += self._product(payload, rows)

    def _product(self, payload: Tensor, rows: slice) -> Tensor:
        left, right = self._factors(payload)
        total = left[0, rows].unsqueeze(1) * right[0]
        for index in range(1, self._layout.num_factors):
            total += left[index, rows].unsqueeze(1) * right[index]
        return total.clamp(-FLOAT32_MAX, FLOAT32_MAX)

    def _factors(self, payload: Tensor) -> tuple[Tensor, Tensor]:
        """Left and right factor as views, one factor a row."""
        layout, numbers = self._layout, payload.view(torch.float32)
        left = numbers[: layout.left_numel].view(layout.num_factors, layout.rows)
        return left, numbers[layout.left_numel :].view(layout.num_factors, layout.columns)

    def _matrix(self, flat: Tensor) -> Tensor:
        return flat.view(self._layout.rows, self._layout.columns)

    def _row_groups(self) -> Iterator[slice]:
        step = max(1, _GROUP_ELEMENTS // self._layout.columns)
        for first in range(0, self._layout.rows, step):
            yield slice(first, first + step)

    def _first_columns(self, device: torch.device) -> Tensor:
        """Numbers in (-1/2, 1/2) that depend on nothing but the shape: [columns, factors]."""
        factors = torch.arange(self._layout.num_factors, device=device)
        key = key_tensor(Key(parameter="lowrank"), device)
        halves = random_halves(key, factors, self._layout.columns)
        return ((halves.float() + 0.5) / 65536 - 0.5).T


def orthonormal(columns: Tensor) -> Tensor:
    """Columns of length one at right angles to each other that span the same space.

    Gram-Schmidt; clearing each column of the earlier ones twice is enough in float32. A column that
    the earlier ones already span becomes zero.

    Args:
        columns: float32, [rows, columns], values up to about one.
    """
    result = torch.zeros_like(columns)
    for index in range(columns.shape[1]):
        column = columns[:, index]
        length = column.norm()
        for _ in range(2):
            column = column - result[:, :index] @ (result[:, :index].T @ column)
        left_over = column.norm()
        is_noise = left_over <= length * _NOISE
        result[:, index] = (column / left_over).masked_fill(is_noise, 0.0)
    return result
