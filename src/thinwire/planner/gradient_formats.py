"""The formats that gradients are priced in, which a plan cannot always know."""

from __future__ import annotations

import math

from thinwire.recipe import Recipe
from thinwire.rules import FormatRule, with_other_bits

__all__ = ["priced_gradients"]


def priced_gradients(recipe: Recipe) -> FormatRule:
    """The formats that gradients are priced in.

    Adaptive bits differ by parameter, in a way that only measured gradients tell. All are priced in
    the narrowest format that takes at least the mean, or in the widest of all if it is an error
    that they keep to, so that the bytes are at most those.
    """
    rule = recipe.grad_rule
    if not recipe.adapts:
        return rule
    candidates = with_other_bits(rule.usual)
    bits = math.inf if recipe.adaptive_bits is None else recipe.adaptive_bits
    enough = (fmt for fmt in candidates if fmt.bits_per_element(fmt.block or 1) >= bits)
    return FormatRule(next(enough, candidates[-1]), rule.exceptions)
