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
from thinwire.wire.factors import add_outer_products, orthonormal, row_groups, start_factors
from thinwire.wire.key import Key
from thinwire.wire.reference.narrow import narrow
from thinwire.wire.scales import FLOAT32_MAX

__all__ = ["LowRankReference"]

_POWER_STEPS = 2
_SMALLEST_EXPONENT = -126


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
        # Squares of large floats would overflow. A power of two scales without rounding.
        largest = torch.stack([values.abs().amax() for _, values in self._groups(x)]).amax()
        exponent = (largest.frexp().exponent - 1).clamp(min=_SMALLEST_EXPONENT)
        unit = torch.ldexp(torch.ones_like(largest), exponent)
        right = start_factors(self._layout.num_factors, self._layout.columns, x.device)
        left = right.new_empty((self._layout.num_factors, self._layout.rows))
        for _ in range(_POWER_STEPS):
            for rows, values in self._groups(x):
                left[:, rows] = right @ (values / unit).T
            left = orthonormal(left)
            right = torch.zeros_like(right)
            for rows, values in self._groups(x):
                right += left[:, rows] @ (values / unit)
        left_part, right_part = self._factors(out)
        # A right factor is up to sqrt(rows) times the largest value: the left one takes that over.
        balance = 2.0 ** math.ceil(math.log2(self._layout.rows) / 2)
        left_part.copy_(left * balance)
        right_part.copy_((right / balance * unit).clamp(-FLOAT32_MAX, FLOAT32_MAX))

    def _decode(self, payload: Tensor, out: Tensor) -> None:
        for rows in row_groups(self._layout.rows, self._layout.columns):
            target = self._matrix(out)[rows]
            target.copy_(narrow(self._product(payload, rows), out.dtype))

    def _decode_sum(self, payloads: Sequence[Tensor], out: Tensor) -> None:
        for rows in row_groups(self._layout.rows, self._layout.columns):
            target = self._matrix(out)[rows]
            target.copy_(self._product(payloads[0], rows))
            for payload in payloads[1:]:
                target += self._product(payload, rows)

    def _groups(self, x: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """A few rows of the matrix at a time, in float32: no copy has the size of the input."""
        for rows in row_groups(self._layout.rows, self._layout.columns):
            yield rows, self._matrix(x)[rows].float()

    def _product(self, payload: Tensor, rows: slice) -> Tensor:
        left, right = self._factors(payload)
        total = (left[0, rows].unsqueeze(1) * right[0]).contiguous()
        add_outer_products(total, left[1:, rows], right[1:])
        return total.clamp(-FLOAT32_MAX, FLOAT32_MAX)

    def _factors(self, payload: Tensor) -> tuple[Tensor, Tensor]:
        """Left and right factor as views, one factor a row."""
        layout, numbers = self._layout, payload.view(torch.float32)
        left = numbers[: layout.left_numel].view(layout.num_factors, layout.rows)
        return left, numbers[layout.left_numel :].view(layout.num_factors, layout.columns)

    def _matrix(self, flat: Tensor) -> Tensor:
        return flat.view(self._layout.rows, self._layout.columns)
