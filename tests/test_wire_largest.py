"""The threshold found by counting is the one that sorting finds, wherever a sample points."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from thinwire.wire.kernels.largest import Source, threshold_of
from thinwire.wire.kernels.plans import kind_of
from wire_cases import DTYPES

MAGNITUDE = 0x7FFFFFFF

# Above 64 elements a sample is taken; 200,000 are many strips, and ragged in all sizes.
SIZES = (1, 31, 64, 5000, 200_001)


def _expected(x: Tensor, num_kept: int) -> tuple[int, int]:
    values = x.float().masked_fill(x.isnan(), torch.nan)
    magnitudes = values.view(torch.int32) & MAGNITUDE
    threshold = magnitudes.sort(descending=True).values[num_kept - 1]
    return int(threshold), num_kept - int((magnitudes > threshold).sum())


def _found(x: Tensor, num_kept: int) -> tuple[int, int]:
    threshold, ties = threshold_of(Source(x.data_ptr(), x.numel(), kind_of(x)), num_kept)
    return int(threshold), int(ties)


@pytest.mark.parametrize("numel", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_normal_numbers(numel: int, dtype: torch.dtype) -> None:
    x = torch.randn(numel, generator=torch.Generator().manual_seed(numel)).to(dtype)
    for num_kept in sorted({1, -(-numel // 1000), -(-numel // 10), numel // 2 + 1, numel}):
        assert _found(x, num_kept) == _expected(x, num_kept)


def test_a_sample_that_misleads() -> None:
    # Every element that the sample looks at is huge, and there are too few of those.
    numel, samples = 200_000, 200_000 // 64
    x = torch.linspace(0, 1, numel)
    x[:: numel // samples] = 1e30
    for num_kept in (10, 5000, 20_000):
        assert _found(x, num_kept) == _expected(x, num_kept)
    x = torch.linspace(0, 1, numel) + 1  # and the other way: none that it looks at counts
    x[:: numel // samples] = 0
    assert _found(x, 2000) == _expected(x, 2000)


@pytest.mark.parametrize("value", [0.0, 1.0, torch.nan, torch.inf, 1e-45, 3.4e38])
def test_all_equal(value: float) -> None:
    x = torch.full((70_000,), value)
    assert _found(x, 700) == _expected(x, 700)


def test_every_nan_is_one_and_above_infinity() -> None:
    x = torch.zeros(1000)
    bits = x.view(torch.int32)
    bits[::100] = torch.tensor([0x7F800001, -1, 0x7FC00000, -0x400001, 0x7FFFFFFF] * 2)
    x[5::100] = torch.inf
    for num_kept in (1, 10, 11, 20, 21):
        assert _found(x, num_kept) == _expected(x, num_kept)
