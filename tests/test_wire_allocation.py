"""Budgets are kept and spent as well as can be."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire.errors import ConfigError
from thinwire.wire.allocation import cheapest_choices


def _brute_force(costs: list[list[float]], weights: list[list[int]], limit: float) -> float:
    """The least cost of all combinations that keep to the limit."""
    best = float("inf")
    for choices in product(*(range(len(options)) for options in costs)):
        weight = sum(w[c] for w, c in zip(weights, choices, strict=True))
        if weight <= limit:
            best = min(best, sum(k[c] for k, c in zip(costs, choices, strict=True)))
    return best


@st.composite
def _problems(draw: st.DrawFn) -> tuple[list[list[float]], list[list[int]], int]:
    num_layers, num_options = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    row = st.lists(st.integers(0, 50), min_size=num_options, max_size=num_options)
    rows = st.lists(row, min_size=num_layers, max_size=num_layers)
    costs = [[float(cost) for cost in options] for options in draw(rows)]
    weights = draw(rows)
    lightest = sum(min(options) for options in weights)
    return costs, weights, lightest + draw(st.integers(0, 60))


@settings(deadline=None)
@given(_problems())
def test_as_good_as_trying_everything(
    problem: tuple[list[list[float]], list[list[int]], int],
) -> None:
    # Weights are whole numbers, and the unit a power of two below one: nothing is rounded.
    costs, weights, limit = problem
    choices = cheapest_choices(costs, weights, limit)
    assert sum(w[c] for w, c in zip(weights, choices, strict=True)) <= limit
    cost = sum(k[c] for k, c in zip(costs, choices, strict=True))
    assert cost == _brute_force(costs, weights, limit)


def test_a_budget_that_just_suffices() -> None:
    assert cheapest_choices([[5.0, 1.0], [5.0, 1.0]], [[1, 3], [1, 3]], 2) == [0, 0]
    assert cheapest_choices([[5.0, 1.0], [5.0, 1.0]], [[1, 3], [1, 3]], 6) == [1, 1]
    assert cheapest_choices([[0.0]], [[0]], 0) == [0]


def test_equally_good_options_take_the_first() -> None:
    assert cheapest_choices([[1.0, 1.0]], [[2, 2]], 10) == [0]


def test_an_impossible_budget_names_the_least() -> None:
    with pytest.raises(ConfigError, match="the least that all layers together need is 7: raise"):
        cheapest_choices([[1.0], [1.0]], [[3], [4]], 6)


def test_many_layers_lose_at_most_a_unit_each() -> None:
    # 300 layers, eight options: what rounding up leaves unspent is at most 300 of 16384 units.
    costs = [[(layer + 1) / 4.0**bits for bits in range(1, 9)] for layer in range(300)]
    weights = [[1000.0 * bits for bits in range(1, 9)] for _ in range(300)]
    limit = 300 * 4000.0
    choices = cheapest_choices(costs, weights, limit)
    spent = sum(w[c] for w, c in zip(weights, choices, strict=True))
    assert limit * (1 - 2 * 300 / 16384) <= spent <= limit
    uniform = sum(options[3] for options in costs)
    assert sum(k[c] for k, c in zip(costs, choices, strict=True)) < uniform
