"""A plan: every recipe predicted, the choice among those that fit, and why.

plan = make_plan(setting, recipes)
plan.choice        the fastest recipe that fits; None when nothing does
plan.reasons       a few sentences with numbers
plan.to_json()     what ``thinwire plan --json`` says of the recipes
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from thinwire.errors import ConfigError
from thinwire.patterns import check_patterns
from thinwire.planner.break_even import TIE, PayingRates, paying_rates
from thinwire.planner.candidates import drift_rank, memory_variants, sends_fewer_bits
from thinwire.planner.explain import explain
from thinwire.planner.prediction import Prediction, predict
from thinwire.planner.setting import Setting
from thinwire.recipe import Recipe

__all__ = ["Plan", "make_plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Predictions in one setting, best first, and the choice among them.

    Attributes:
        setting: workload and cluster.
        predictions: those that fit by time, then those that do not.
        choice: the first of those that fit; ``None`` when nothing fits.
        cheapest: when nothing fits: the fastest change of a recipe that does, if there is one.
        paying: at which rates of the link compression pays; ``None`` where nothing crosses it, or
            there is nothing to compare.
        reasons: in sentences.
    """

    setting: Setting = field(repr=False)
    predictions: tuple[Prediction, ...]
    choice: Prediction | None
    cheapest: Prediction | None
    paying: PayingRates | None
    reasons: tuple[str, ...]

    @property
    def break_even_bit_per_s(self) -> float | None:
        """The rate nearest to the link's at which compression begins or ceases to pay."""
        if self.paying is None:
            return None
        return self.paying.nearest(self.setting.cluster.link.bit_per_s)

    @property
    def break_even_margin(self) -> float | None:
        """By which share of a step the two sides differ a quarter beside that rate, or more."""
        rate = self.break_even_bit_per_s
        return None if rate is None or self.paying is None else self.paying.margin_of(rate)

    def to_json(self) -> dict[str, Any]:
        """What ``thinwire plan --json`` prints of the recipes; bytes and seconds are per step.

        Before it comes what `thinwire.planner.description.describe` says of the setting.

        ``fits`` is ``null`` where the memory of what a recipe fills is unknown.
        """
        return {
            "choice": None if self.choice is None else self.choice.recipe.name,
            "reasons": list(self.reasons),
            "break_even_bit_per_s": self.break_even_bit_per_s,
            "break_even_margin": self.break_even_margin,
            "recipes": [_prediction_json(prediction) for prediction in self.predictions],
        }


def make_plan(setting: Setting, recipes: Sequence[Recipe], *, limit: int | None = None) -> Plan:
    """Predict every recipe and choose.

    The choice is the fastest that fits; among recipes within 1 % of it, the one that loses least.

    Args:
        setting: workload and cluster.
        recipes: what to compare.
        limit: keep no more predictions than this, the best ones; ``None``: all.

    Raises:
        ConfigError: no recipe, one that the device cannot compute, or one with a pattern on names
            that decides nothing.
    """
    if not recipes:
        raise ConfigError("no recipe to plan: name at least one")
    shapes = setting.workload.shapes()
    for recipe in recipes:
        check_patterns(recipe, shapes)
    predictions = [predict(setting, recipe) for recipe in recipes]
    fitting = _ranked([item for item in predictions if item.fit.fits])
    failing = sorted(
        (item for item in predictions if not item.fit.fits), key=lambda item: item.step_s
    )
    cheapest = None if fitting else _cheapest_change(setting, recipes)
    paying = paying_rates(
        setting,
        [item for item in fitting if sends_fewer_bits(item.recipe)],
        [item for item in fitting if not sends_fewer_bits(item.recipe)],
    )
    return Plan(
        setting=setting,
        predictions=(*fitting, *failing)[:limit],
        choice=fitting[0] if fitting else None,
        cheapest=cheapest,
        paying=paying,
        reasons=explain(setting, (fitting, failing), cheapest, paying, limit=limit),
    )


def _ranked(predictions: list[Prediction]) -> list[Prediction]:
    """By time; those within ``TIE`` of the fastest by what their codecs lose."""
    by_time = sorted(predictions, key=lambda item: item.step_s)
    if not by_time:
        return []
    limit_s = by_time[0].step_s * (1 + TIE)
    tied = [item for item in by_time if item.step_s <= limit_s]
    tied.sort(key=lambda item: (drift_rank(item.recipe), item.step_s))
    return tied + by_time[len(tied) :]


def _cheapest_change(setting: Setting, recipes: Sequence[Recipe]) -> Prediction | None:
    """The fastest recipe that fits after giving up time for memory."""
    variants = {variant for recipe in recipes for variant in memory_variants(recipe, setting)}
    changed = [predict(setting, variant) for variant in variants.difference(recipes)]
    return min(
        (item for item in changed if item.fit.fits), key=lambda item: item.step_s, default=None
    )


def _prediction_json(prediction: Prediction) -> dict[str, Any]:
    time = prediction.time
    return {
        "name": prediction.recipe.name,
        "fits": prediction.fit.verdict,
        "device_bytes": prediction.memory.device.to_json(),
        "host_bytes": prediction.memory.host.to_json(),
        "within_bytes": round(prediction.sent.within_bytes),
        "across_bytes": round(prediction.sent.across_bytes),
        "step_s": prediction.step_s,
        "compute_s": time.compute_s,
        "exposed_comm_s": time.exposed_comm_s,
        "codec_s": time.codec_s,
        "offload_s": time.offload_s,
        "bubble_s": time.bubble_s,
    }
