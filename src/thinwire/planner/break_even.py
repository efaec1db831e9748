"""At which bandwidths compression pays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from thinwire.planner.prediction import Prediction
from thinwire.planner.setting import Setting
from thinwire.planner.step import Step
from thinwire.planner.traffic import RecipeTraffic, recipe_traffic
from thinwire.recipe import Recipe

__all__ = ["BESIDE", "SURE", "TIE", "PayingRates", "best_step_s", "paying_rates", "price"]

PricedRecipe = tuple[Recipe, RecipeTraffic]

SLOWEST_BIT_PER_S = 1e6
DECADES = 8  # up to 100 Tbit/s
POINTS_A_DECADE = 3
FEW = 24  # recipes that are all priced at every rate; of more, the fastest two of each decade
BESIDE = 0.25  # of a break-even's rate: what a user may be away from it
SURE = 0.05  # of a step: about the median error of plans in the lab, benchmarks/planner
TIE = 0.01  # of a step: nobody can tell two recipes apart, and neither pays
PRECISION = 1e-3  # of the rate; published figures and measurements are far coarser


@dataclass(frozen=True, slots=True, kw_only=True)
class PayingRates:
    """Where the best compressed recipe is faster than the best other one.

    A range of rates on which it is faster by no more than a tie is none, and one on which it is
    slower by no more than that, between two others, is part of them.

    Attributes:
        pays_slowest: whether it is over the slowest link; ``None``: the two tie over every link.
        crossings_bit_per_s: rates of the link at which that changes, in rising order.
        margins: for each of them the share of a step by which the two differ a quarter below it or
            a quarter above, whichever is less.
    """

    pays_slowest: bool | None
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
        if self.pays_slowest is None:
            return []
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
    small, large = _Side(setting, compressed), _Side(setting, others)

    def gain(bit_per_s: float) -> float:
        return large.best_s(bit_per_s) / small.best_s(bit_per_s)

    # none but the rates of a grid: every link of a cluster is told the same
    rates = _rates(POINTS_A_DECADE)
    spans = _spans([(rate, gain(rate)) for rate in rates])
    crossings = [_crossing(gain, before.last, after.first) for before, after in pairwise(spans)]
    margins = [
        min(abs(gain((1 - BESIDE) * rate) - 1), abs(gain((1 + BESIDE) * rate) - 1))
        for rate in crossings
    ]
    return PayingRates(
        pays_slowest=spans[0].pays if any(_differs(gain(rate)) for rate in rates) else None,
        crossings_bit_per_s=tuple(crossings),
        margins=tuple(margins),
    )


@dataclass(frozen=True, slots=True)
class _Span:
    """Neighbouring rates of a grid on which compression pays, or does not.

    Attributes:
        pays: whether it does.
        first, last: the lowest and the highest of the rates.
        is_sure: whether the two sides differ by more than `TIE` on one of them.
    """

    pays: bool
    first: float
    last: float
    is_sure: bool


def _spans(gains: Sequence[tuple[float, float]]) -> list[_Span]:
    """What compression does, rate by rate in rising order, where it does anything.

    A gain that is nowhere more than a tie is none, and a loss between two gains likewise.
    """
    spans = _joined([_Span(gain > 1, rate, rate, _differs(gain)) for rate, gain in gains])
    spans = _joined([replace(span, pays=span.pays and span.is_sure) for span in spans])
    inner = [replace(span, pays=span.pays or not span.is_sure) for span in spans[1:-1]]
    return _joined([*spans[:1], *inner, *spans[1:][-1:]])


def _joined(spans: Sequence[_Span]) -> list[_Span]:
    joined: list[_Span] = []
    for span in spans:
        if joined and joined[-1].pays == span.pays:
            first = joined.pop()
            is_sure = first.is_sure or span.is_sure
            span = _Span(span.pays, first.first, span.last, is_sure)
        joined.append(span)
    return joined


def _differs(gain: float) -> bool:
    return max(gain, 1 / gain) > 1 + TIE


def best_step_s(setting: Setting, recipes: Sequence[PricedRecipe], bit_per_s: float) -> float:
    """The step of the fastest of some recipes over a link of another rate."""
    at = replace(setting, cluster=setting.cluster.with_link(bit_per_s))
    return min(Step(at, recipe, traffic).end_s() for recipe, traffic in recipes)


def price(setting: Setting, recipes: Sequence[Recipe]) -> list[PricedRecipe]:
    """Recipes with their traffic, which no rate changes."""
    return [(recipe, recipe_traffic(setting, recipe)) for recipe in recipes]


def _rates(points_a_decade: int) -> list[float]:
    count = DECADES * points_a_decade + 1
    return [SLOWEST_BIT_PER_S * 10 ** (index / points_a_decade) for index in range(count)]


class _Side:
    """Recipes of one side, and the fastest of them at any rate.

    Of those that send the same only the fastest can be: no rate changes what else tells them apart.
    """

    def __init__(self, setting: Setting, predictions: Sequence[Prediction]) -> None:
        ordered = sorted(predictions, key=lambda item: (item.step_s, item.time.compute_s))
        kinds: dict[Recipe, Recipe] = {}
        for prediction in ordered:
            kinds.setdefault(_sending(prediction.recipe), prediction.recipe)
        self._setting = setting
        self._best_s: dict[float, float] = {}
        self._recipes = price(setting, list(kinds.values()))
        if len(self._recipes) > FEW:
            leaders = [self._recipes[0]]
            for rate in _rates(1):
                leaders.extend(self._fastest_two(rate))
            self._recipes = list(dict(leaders).items())

    def best_s(self, bit_per_s: float) -> float:
        """The step of the fastest over a link of another rate."""
        if bit_per_s not in self._best_s:
            self._best_s[bit_per_s] = best_step_s(self._setting, self._recipes, bit_per_s)
        return self._best_s[bit_per_s]

    def _fastest_two(self, bit_per_s: float) -> list[PricedRecipe]:
        """The second may lead between this decade and the next."""
        steps_s = [best_step_s(self._setting, [item], bit_per_s) for item in self._recipes]
        order = sorted(range(len(steps_s)), key=steps_s.__getitem__)
        return [self._recipes[index] for index in order[:2]]


def _sending(recipe: Recipe) -> Recipe:
    """What of a recipe decides what it sends, and when."""
    return replace(recipe, activations="keep", optimizer_states="fp32", offload="none")


def _crossing(gain: Callable[[float], float], low: float, high: float) -> float:
    """Where a gain of 1 lies between two rates, by bisection of the logarithm."""
    before = gain(low) > 1
    while high > low * (1 + PRECISION):
        middle = math.sqrt(low * high)
        if (gain(middle) > 1) == before:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)
