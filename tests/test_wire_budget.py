"""Budgets are kept to, by the best choice there is."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from thinwire.errors import ConfigError
from thinwire.wire.budget import ByteBudget, ErrorBudget

# three parameters of 8, 16 and 80 elements, in formats of 4, 8 and 16 bits
NUMELS = [8, 16, 80]
SIZES = [[numel / 2, float(numel), 2.0 * numel] for numel in NUMELS]
LOSSES = [[9.0, 0.5, 0.0], [1.0, 0.1, 0.0], [4.0, 0.2, 0.0]]
SQUARE = 400.0


def best(costs: list[list[float]], weights: list[list[float]], limit: float) -> float:
    """The least cost of any choice within the limit, by trying all."""
    fitting = [
        sum(row[column] for row, column in zip(costs, columns, strict=True))
        for columns in itertools.product(range(3), repeat=3)
        if sum(row[column] for row, column in zip(weights, columns, strict=True)) <= limit
    ]
    return min(fitting)


def total(table: list[list[float]], columns: list[int]) -> float:
    return sum(row[column] for row, column in zip(table, columns, strict=True))


@pytest.mark.parametrize("mean_bits", [4.0, 5.0, 7.9, 8.0, 12.0, 16.0])
def test_the_least_error_that_the_bytes_allow(mean_bits: float) -> None:
    columns = ByteBudget(mean_bits).choose(LOSSES, SIZES, sum(NUMELS), SQUARE)
    assert total(SIZES, columns) <= mean_bits * sum(NUMELS) / 8
    assert total(LOSSES, columns) == best(LOSSES, SIZES, mean_bits * sum(NUMELS) / 8)


@pytest.mark.parametrize("relative", [0.001, 0.03, 0.05, 0.1, 0.18, 0.5])
def test_the_fewest_bytes_that_the_error_allows(relative: float) -> None:
    columns = ErrorBudget(relative).choose(LOSSES, SIZES, sum(NUMELS), SQUARE)
    # the norm is 20, so that 0.05 of it is an error of 1
    assert math.sqrt(total(LOSSES, columns)) <= relative * 20
    assert total(SIZES, columns) == best(SIZES, LOSSES, (relative * 20) ** 2)


def test_all_begin_with_the_widest_that_keeps_to_the_budget() -> None:
    assert ByteBudget(16.0).first_choice(SIZES, sum(NUMELS)) == 2
    assert ByteBudget(15.9).first_choice(SIZES, sum(NUMELS)) == 1
    assert ErrorBudget(0.5).first_choice(SIZES, sum(NUMELS)) == 2
    with pytest.raises(ConfigError, match="raise the mean bits"):
        ByteBudget(3.9).first_choice(SIZES, sum(NUMELS))


@pytest.mark.parametrize("odd", [-1.0, 0.0, math.nan, math.inf, "4", None, True])
def test_what_is_no_budget_is_refused(odd: Any) -> None:
    with pytest.raises(ConfigError, match="mean_bits is a number above 0"):
        ByteBudget(odd)
    with pytest.raises(ConfigError, match="relative is a number above 0"):
        ErrorBudget(odd)
