"""What ``+clip`` takes scales from: the very element that sorting would find."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from thinwire.wire.kernels.percentiles import clip_extremes, clip_magnitudes


@numba.njit
def _clip_magnitudes(values: Any, num_clipped: int, spare: Any, largest: Any) -> None:
    clip_magnitudes(values, num_clipped, spare, largest)


@numba.njit
def _clip_extremes(values: Any, num_clipped: int, spare: Any, lowest: Any, highest: Any) -> None:
    clip_extremes(values, num_clipped, spare, lowest, highest)


def _magnitude_beyond(rows: Tensor, num_clipped: int) -> Tensor:
    largest = rows.abs().amax(dim=1)
    _clip_magnitudes(
        rows.view(-1).numpy(),
        num_clipped,
        np.empty(4 * rows.shape[1], np.uint8),
        largest.view(torch.int32).numpy(),
    )
    return largest


def _range_beyond(rows: Tensor, num_clipped: int) -> Tensor:
    lowest, highest = rows.amin(dim=1), rows.amax(dim=1)
    ends = (end.view(torch.int32).numpy() for end in (lowest, highest))
    spare = np.empty(4 * rows.shape[1], np.uint8)
    _clip_extremes(rows.view(-1).numpy(), num_clipped, spare, *ends)
    return torch.stack([lowest, highest])


@settings(max_examples=300, deadline=None)  # deadline: the first example compiles
@given(
    values=st.lists(
        st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=2, max_size=70
    ),
    share=st.floats(0, 0.5),
)
def test_the_element_of_that_rank(values: list[float], share: float) -> None:
    row = torch.tensor([values])
    num_clipped = int(share * len(values))
    sorted_magnitudes = row[0].abs().sort(descending=True).values
    assert _magnitude_beyond(row, num_clipped)[0] == sorted_magnitudes[num_clipped]
    rising = row[0].sort().values
    at_each_end = num_clipped // 2
    low, high = _range_beyond(row, at_each_end)[:, 0]
    assert (low, high) == (rising[at_each_end], rising[len(values) - 1 - at_each_end])


@pytest.mark.parametrize("width", [8, 24, 128, 4096])
def test_among_equal_values_and_across_all_octaves(width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    few = torch.randint(-2, 3, (3, width), generator=generator).float()
    spread = torch.randn(3, width, generator=generator) * 2.0 ** torch.linspace(-120, 120, width)
    for rows in (few, spread, torch.zeros(3, width)):
        for num_clipped in (1, width // 20, width // 2):
            rank = width - num_clipped
            expected = rows.abs().kthvalue(rank, dim=1).values
            assert torch.equal(_magnitude_beyond(rows, num_clipped), expected)


@pytest.mark.parametrize("beyond", [_magnitude_beyond, _range_beyond])
def test_a_block_that_is_not_finite_stays_so(beyond: Callable[[Tensor, int], Tensor]) -> None:
    rows = torch.arange(1.0, 33.0).repeat(2, 1)
    rows[0, 5] = math.inf
    assert beyond(rows, 4).view(-1, 2)[-1].tolist() == [math.inf, 28.0]
