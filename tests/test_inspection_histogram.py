"""How values are spread: every element is counted once, before and after."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from thinwire.formats import parse_format
from thinwire.inspection.histogram import MAX_REACH, NUM_BINS, Histogram, spread
from thinwire.inspection.profile import profile


def count(values: Tensor, fmt: str = "int4/128") -> Histogram:
    return spread(values, parse_format(fmt), "w", profile(values))


def draw(numel: int) -> Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_element_is_counted_once(scale: float, dtype: torch.dtype) -> None:
    histogram = count((draw(5000) * scale).to(dtype))
    assert sum(histogram.before) == sum(histogram.after) == 5000
    assert len(histogram.before) == len(histogram.after) == NUM_BINS


def test_an_outlier_falls_into_the_last_bin() -> None:
    values = draw(5000)
    values[0] = 1e4
    histogram = count(values)
    assert histogram.reach == MAX_REACH
    assert histogram.before[-1] == 1


def test_zeros_lie_in_the_middle() -> None:
    histogram = count(torch.zeros(300))
    middle = NUM_BINS // 2
    assert histogram.before[middle] == histogram.after[middle] == 300
    assert histogram.centres[middle] == pytest.approx(0, abs=1e-12)


def test_one_block_of_two_bits_arrives_in_three_values() -> None:
    histogram = count(draw(64), "int2/64")
    assert sum(1 for number in histogram.after if number) == 3
    assert sum(1 for number in histogram.before if number) > 20


def test_the_document_gives_the_ends_in_the_units_of_the_tensor() -> None:
    document = count(torch.tensor([2.0, -2.0, 2.0, -2.0])).to_json()
    assert (document["from"], document["to"]) == (-2.0, 2.0)
    assert document["before"][0] == document["before"][-1] == 2
