"""From which bandwidth on compression stops paying."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from thinwire.planner.setting import Setting
from thinwire.planner.step import Step
from thinwire.planner.traffic import RecipeTraffic, recipe_traffic
from thinwire.recipe import Recipe

__all__ = ["FASTEST_BIT_PER_S", "SLOWEST_BIT_PER_S", "best_step_s", "break_even_bit_per_s", "price"]

PricedRecipe = tuple[Recipe, RecipeTraffic]

SLOWEST_BIT_PER_S, FASTEST_BIT_PER_S = 1e6, 1e14
LEADERS = 2
LEADER_RATES_BIT_PER_S = (SLOWEST_BIT_PER_S, 1e9, 1e11, FASTEST_BIT_PER_S)
PRECISION = 1e-3  # of the rate; published figures and measurements are far coarser


def break_even_bit_per_s(
    setting: Setting, compressed: Sequence[Recipe], uncompressed: Sequence[Recipe]
) -> float | None:
    """The rate of the link below which the best compressed recipe is faster than the best other.

    Returns:
        The rate, or ``None`` where one side is faster at every rate, or there is only one side.
    """
    if not compressed or not uncompressed or not setting.group.is_across:
        return None

    small, others = _leaders(setting, compressed), _leaders(setting, uncompressed)

    def gain_s(bit_per_s: float) -> float:
        return best_step_s(setting, others, bit_per_s) - best_step_s(setting, small, bit_per_s)

    if gain_s(SLOWEST_BIT_PER_S) <= 0 or gain_s(FASTEST_BIT_PER_S) >= 0:
        return None
    return _crossing(gain_s)


def best_step_s(setting: Setting, recipes: Sequence[PricedRecipe], bit_per_s: float) -> float:
    """The step of the fastest of some recipes over a link of another rate."""
    at = dataclasses.replace(setting, cluster=setting.cluster.with_link(bit_per_s))
    return min(Step(at, recipe, traffic).end_s() for recipe, traffic in recipes)


def price(setting: Setting, recipes: Sequence[Recipe]) -> list[PricedRecipe]:
    """Recipes with their traffic, which no rate changes."""
    return [(recipe, recipe_traffic(setting, recipe)) for recipe in recipes]


def _leaders(setting: Setting, recipes: Sequence[Recipe]) -> list[PricedRecipe]:
    """The recipes that can be the fastest at some rate: the first few at slow and at fast rates."""
    chosen: dict[Recipe, PricedRecipe] = {}
    priced = price(setting, recipes)
    for rate in LEADER_RATES_BIT_PER_S:
        by_time = sorted(priced, key=lambda item: best_step_s(setting, [item], rate))
        chosen.update((item[0], item) for item in by_time[:LEADERS])
    return list(chosen.values())


def _crossing(gain_s: Callable[[float], float]) -> float:
    """Where a gain that is positive at slow rates turns negative, by bisection of the logarithm."""
    low, high = math.log(SLOWEST_BIT_PER_S), math.log(FASTEST_BIT_PER_S)
    while high - low > PRECISION:
        middle = (low + high) / 2
        if gain_s(math.exp(middle)) > 0:
            low = middle
        else:
            high = middle
    return math.exp((low + high) / 2)
