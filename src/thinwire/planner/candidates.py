"""Which recipes a plan looks at: the named ones, and the grid around them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from thinwire.formats import WireFormat
from thinwire.planner.setting import Setting
from thinwire.planner.workload import DTYPE_BYTES
from thinwire.recipe import Recipe
from thinwire.recipes import names, parse_recipe

__all__ = ["drift_rank", "grid", "memory_variants", "named_recipes", "sends_fewer_bits"]

MOST_LOST = 2.0  # by two codecs, one for each direction

# what saves memory, the cheapest in time first
SAVINGS = (
    ("optimizer_states=int8/256",),
    ("activations=recompute",),
    ("activations=recompute", "optimizer_states=int8/256"),
    ("offload=states",),
    ("activations=recompute", "offload=states"),
    ("activations=offload", "offload=states"),
    ("activations=offload", "offload=all"),
)


def named_recipes(setting: Setting) -> tuple[Recipe, ...]:
    """All named recipes, in fp32 where the device has no bf16."""
    has_bf16 = "bf16" in setting.cluster.device.flop_per_s
    return tuple(parse_recipe(name if has_bf16 else f"{name}:compute=fp32") for name in names())


def memory_variants(recipe: Recipe, setting: Setting) -> Iterator[Recipe]:
    """A recipe with less memory and more time, by one change or a few.

    Offloading is left out where the device's memory is the host's anyway.
    """
    for changes in SAVINGS:
        offloads = any(change.split("=")[0] == "offload" for change in changes)
        hosts = any(change == "activations=offload" for change in changes)
        if (offloads or hosts) and setting.cluster.device.kind == "cpu":
            continue
        if all(change.split("=")[0] not in recipe.name for change in changes):
            yield _changed(recipe, changes)


def grid(setting: Setting) -> Iterator[Recipe]:
    """Stages x formats x replica x accumulation x activations x optimizer states x offload."""
    accumulations = ("sync", "keep", "within") if setting.accumulate > 1 else ("sync",)
    offloads = ("none",) if setting.cluster.device.kind == "cpu" else ("none", "states")
    choices = itertools.product(
        named_recipes(setting),
        ("", "int8/256", "int4/128"),
        ("", "int8/128", "int4/128"),
        accumulations,
        ("keep", "recompute"),
        ("fp32", "int8/256"),
        offloads,
    )
    seen: set[Recipe] = set()
    for base, weights, grads, accumulation, activations, states, offload in choices:
        if base.stage < 2 and weights:
            continue
        if base.stage == 0 and accumulation == "within":
            continue
        accumulate = base.accumulate if base.stage == 1 else accumulation
        changes = [
            f"weights={weights}" if weights else "",
            f"grads={grads}" if grads else "",
            f"accumulate={accumulate}" if accumulate != base.accumulate else "",
            f"activations={activations}" if activations != base.activations else "",
            f"optimizer_states={states}" if states != base.optimizer_states else "",
            f"offload={offload}" if offload != base.offload else "",
        ]
        recipe = _changed(base, tuple(change for change in changes if change))
        if recipe not in seen:
            seen.add(recipe)
            yield recipe


def drift_rank(recipe: Recipe) -> float:
    """How far a recipe strays from plain training, for ranking those that take the same time.

    The half step of each direction, as a share of a block's largest value, or the share of elements
    that are left out; feedback and stochastic rounding repair the mean and count half. Gradients
    that are late and ranks that train on their own count more than any codec. An order, not a
    prediction of the loss.
    """
    if recipe.is_uncompressed:
        return 0.0
    lost = sum(_lost(fmt) for fmt in (recipe.weight_format, recipe.grad_format))
    strays = (recipe.staleness > 0) + (recipe.local_steps > 1)
    return (lost / 2 if recipe.feedback else lost) + MOST_LOST * strays


def sends_fewer_bits(recipe: Recipe) -> bool:
    """Whether some numbers travel in fewer bits than PyTorch's own collectives take for them."""
    own_bits = 8 * (DTYPE_BYTES[recipe.compute] if recipe.stage else DTYPE_BYTES["fp32"])
    rules = [recipe.grad_rule, recipe.grad_rule_within]
    if recipe.stage:
        rules.append(recipe.weight_rule)
    formats = [
        fmt
        for rule in rules
        if rule is not None
        for fmt in (rule.usual, *(fmt for _, fmt in rule.exceptions))
    ]
    return any(not fmt.is_cast or fmt.bits < own_bits for fmt in formats)


def _lost(fmt: WireFormat) -> float:
    if fmt.is_cast:
        return 0.0
    if fmt.share is not None:
        return 1.0 - float(fmt.share)
    if fmt.rank is not None:
        return 1.0
    half_step = 2.0**-fmt.bits
    return half_step / 2 if fmt.is_stochastic else half_step


def _changed(recipe: Recipe, changes: tuple[str, ...]) -> Recipe:
    """A recipe with fields replaced, named so that it can be typed again."""
    fields: dict[str, Any] = dict(change.split("=") for change in changes)
    return replace(recipe, **fields, name=":".join((recipe.name, *changes)))
