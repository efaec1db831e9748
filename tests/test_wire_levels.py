"""Learned levels: the optimum, by trying all choices where they can be counted."""

from __future__ import annotations

from itertools import combinations, pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire.wire import decode, encode
from thinwire.wire.kernels.intervals import best_levels
from thinwire.wire.levels import learn_levels, nearest_level


def squared_error(counts: dict[int, int], levels: tuple[int, ...]) -> int:
    return sum(
        count * min((point - level) ** 2 for level in levels) for point, count in counts.items()
    )


@settings(deadline=None, max_examples=40)
@given(st.dictionaries(st.integers(-9, 9), st.integers(1, 50), max_size=19))
def test_no_choice_of_levels_has_a_smaller_error(counts: dict[int, int]) -> None:
    histogram = torch.zeros(256, dtype=torch.int64)
    for point, count in counts.items():
        histogram[point + 128] = count
    found = learn_levels(histogram, 2).tolist()
    assert found == sorted(found)
    best = min(squared_error(counts, levels) for levels in combinations(range(-9, 10), 4))
    assert squared_error(counts, tuple(found)) == best


@settings(deadline=None, max_examples=100)  # deadline: the first example compiles
@given(
    counts=st.dictionaries(st.integers(1, 255), st.integers(1, 1 << 30), max_size=255),
    bits=st.integers(2, 7),
)
def test_the_kernel_finds_the_same_levels(counts: dict[int, int], bits: int) -> None:
    histogram = torch.zeros(256, dtype=torch.int64)
    for point, count in counts.items():
        histogram[point] = count
    found = best_levels(histogram.numpy(), 1 << bits)
    assert found.tolist() == learn_levels(histogram, bits).tolist()


def test_the_kernel_breaks_ties_alike() -> None:
    # Even counts: many divisions are equally good.
    for step in (1, 2, 5):
        histogram = torch.zeros(256, dtype=torch.int64)
        histogram[1::step] = 3
        for bits in range(2, 8):
            found = best_levels(histogram.numpy(), 1 << bits)
            assert found.tolist() == learn_levels(histogram, bits).tolist()


def test_learned_levels_lose_less_than_even_ones_where_values_are_not_even() -> None:
    x = torch.randn(2**15, generator=torch.Generator().manual_seed(0))
    even = (decode(encode(x, "int4/128")) - x).norm()
    learned = (decode(encode(x, "int4/128+levels")) - x).norm()
    # Lloyd and Max: 16 optimal levels for a normal variable; the blocks' scales blur it a little.
    assert learned < 0.85 * even


def test_the_nearest_level_is_the_lower_of_two_equally_near_ones() -> None:
    nearest = nearest_level(torch.tensor([-4, 0, 10, 10], dtype=torch.int8))
    chosen = {point: int(nearest[point + 128]) for point in (-128, -3, -2, -1, 5, 6, 127)}
    assert chosen == {-128: 0, -3: 0, -2: 0, -1: 1, 5: 1, 6: 2, 127: 2}


def test_nothing_and_a_few_points_need_no_search() -> None:
    assert learn_levels(torch.zeros(256, dtype=torch.int64), 2).tolist() == [0, 0, 0, 0]
    counts = torch.zeros(256, dtype=torch.int64)
    counts[[1, 255]] = 5
    assert learn_levels(counts, 2).tolist() == [-127, 127, 127, 127]


def test_as_many_elements_as_a_model_has_do_not_overflow() -> None:
    counts = torch.full((256,), 2**36 // 256, dtype=torch.int64)
    levels = learn_levels(counts, 4).tolist()
    gaps = [high - low for low, high in pairwise(levels)]
    assert set(gaps) <= {15, 16, 17}  # even counts: even levels, up to rounding
