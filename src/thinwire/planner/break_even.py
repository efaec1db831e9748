"""At which bandwidths compression pays."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from thinwire.planner.prediction import Prediction
from thinwire.planner.setting import Setting
from thinwire.planner.step import Step
from thinwire.planner.traffic import RecipeTraffic, recipe_traffic
from thinwire.recipe import Recipe

__all__ = ["BESIDE", "SURE", "PayingRates", "best_step_s", "paying_rates", "price"]

PricedRecipe = tuple[Recipe, RecipeTraffic]

SLOWEST_BIT_PER_S = 1e6
DECADES = 8  # up to 100 Tbit/s
POINTS_A_DECADE = 2
BESIDE = 0.25  # of a break-even's rate: what a user may be away from it
SURE = 0.05  # of a step: about the median error of plans in the lab, benchmarks/planner
PRECISION = 1e-3  # of the rate; published figures and measurements are far coarser


@dataclass(frozen=True, slots=True, kw_only=True)
class PayingRates:
    """Where the best compressed recipe is faster than the best other one.

    Attributes:
        pays_slowest: whether it is over the slowest link.
        crossings_bit_per_s: rates of the link at which that changes, in rising order.
        margins: for each of them the share of a step by which the two differ a quarter below it or
            a quarter above, whichever is less.
    """

    pays_slowest: bool
    crossings_bit_per_s: tuple[float, ...]
    margins: tuple[float, ...]

    def pays_at(self, bit_per_s: float) -> bool:
        """Whether compression pays at a rate."""
        passed = sum(rate < bit_per_s for rate in self.crossings_bit_per_s)
        return self.pays_slowest == (passed % 2 == 0)

    def nearest(self, bit_per_s: float) -> float | None:
        """The crossing nearest to a rate by their ratio; ``None``: there is none."""
        return min(
            self.crossings_bit_per_s,
            key=lambda rate: abs(math.log(rate / bit_per_s)),
            default=None,
        )

    def margin_of(self, crossing_bit_per_s: float) -> float:
        """How far apart the two are beside a crossing; see ``margins``."""
        return self.margins[self.crossings_bit_per_s.index(crossing_bit_per_s)]

    def intervals(self) -> list[tuple[float, float]]:
        """The ranges of rates at which it pays, from 0 to infinity."""
        bounds = [0.0, *self.crossings_bit_per_s, math.inf]
        return list(pairwise(bounds))[0 if self.pays_slowest else 1 :: 2]


def paying_rates(
    setting: Setting, compressed: Sequence[Prediction], others: Sequence[Prediction]
) -> PayingRates | None:
    """The rates of the link at which the best of some recipes is faster than the best of others.

    Returns:
        The rates; ``None`` where nothing crosses a link, or there is only one side.
    """
    if not compressed or not others or not setting.group.is_across:
        return None
    own = setting.cluster.link.bit_per_s
    small, large = _Side(setting, compressed), _Side(setting, others)

    def pays(bit_per_s: float) -> bool:
        return small.best_s(bit_per_s) < large.best_s(bit_per_s)

    rates = sorted({own, *_rates(POINTS_A_DECADE)})
    verdicts = [pays(rate) for rate in rates]
    crossings = [
        _crossing(pays, low, high)
        for (low, high), (before, after) in zip(pairwise(rates), pairwise(verdicts), strict=True)
        if before != after
    ]

    def apart(bit_per_s: float) -> float:
        steps_s = small.best_s(bit_per_s), large.best_s(bit_per_s)
        return max(steps_s) / min(steps_s) - 1

    margins = [min(apart((1 - BESIDE) * rate), apart((1 + BESIDE) * rate)) for rate in crossings]
    return PayingRates(
        pays_slowest=verdicts[0], crossings_bit_per_s=tuple(crossings), margins=tuple(margins)
    )


def best_step_s(setting: Setting, recipes: Sequence[PricedRecipe], bit_per_s: float) -> float:
    """The step of the fastest of some recipes over a link of another rate."""
    at = dataclasses.replace(setting, cluster=setting.cluster.with_link(bit_per_s))
    return min(Step(at, recipe, traffic).end_s() for recipe, traffic in recipes)


def price(setting: Setting, recipes: Sequence[Recipe]) -> list[PricedRecipe]:
    """Recipes with their traffic, which no rate changes."""
    return [(recipe, recipe_traffic(setting, recipe)) for recipe in recipes]


def _rates(points_a_decade: int) -> list[float]:
    count = DECADES * points_a_decade + 1
    return [SLOWEST_BIT_PER_S * 10 ** (index / points_a_decade) for index in range(count)]


class _Side:
    """Recipes of one side: the fastest at some rate, decade by decade, and at the present one.

    Of those that send the same only the fastest can be: no rate changes what else tells them apart.
    """

    def __init__(self, setting: Setting, predictions: Sequence[Prediction]) -> None:
        ordered = sorted(predictions, key=lambda item: (item.step_s, item.time.compute_s))
        kinds: dict[Recipe, Recipe] = {}
        for prediction in ordered:
            kinds.setdefault(_sending(prediction.recipe), prediction.recipe)
        priced = price(setting, list(kinds.values()))
        leaders = {priced[0][0]: priced[0]}
        self._setting = setting
        self._best_s = {setting.cluster.link.bit_per_s: ordered[0].step_s}
        for rate in _rates(1):
            steps_s = [best_step_s(setting, [item], rate) for item in priced]
            self._best_s[rate] = min(steps_s)
            leader = priced[steps_s.index(self._best_s[rate])]
            leaders[leader[0]] = leader
        self._leaders = list(leaders.values())

    def best_s(self, bit_per_s: float) -> float:
        """The step of the fastest over a link of another rate."""
        if bit_per_s not in self._best_s:
            self._best_s[bit_per_s] = best_step_s(self._setting, self._leaders, bit_per_s)
        return self._best_s[bit_per_s]


def _sending(recipe: Recipe) -> Recipe:
    """What of a recipe decides what it sends, and when."""
    return dataclasses.replace(recipe, activations="keep", optimizer_states="fp32", offload="none")


def _crossing(pays: Callable[[float], bool], low: float, high: float) -> float:
    """Where the verdict of two rates changes between them, by bisection of the logarithm."""
    before = pays(low)
    while high > low * (1 + PRECISION):
        middle = math.sqrt(low * high)
        if pays(middle) == before:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)
