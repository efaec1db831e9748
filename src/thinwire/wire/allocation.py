"""One choice per layer, so that the sum of costs is least and the sum of weights keeps to a limit.

With errors as costs and bytes as weights this spends a byte budget; with bytes as costs and errors
as weights it spends an error budget, which is the form of L-GreCo (Markov et al., arXiv 2210.17357,
algorithm 1). Both are a knapsack with one item of each group, solved by dynamic programming over
the weight spent so far.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from thinwire.errors import ConfigError

__all__ = ["cheapest_choices"]

# What the limit leaves above the lightest choice is spent in at least this many units, and less
# than twice as many. Weights are rounded up to units, so that the limit is kept; one unit per layer
# may thereby remain unspent. A unit is a power of two: small whole numbers stay exact.
_MIN_UNITS = 1 << 14


def cheapest_choices(
    costs: Sequence[Sequence[float]], weights: Sequence[Sequence[float]], limit: float
) -> list[int]:
    """The index of the chosen option of every layer.

    Deterministic: the same numbers give the same choices on every rank. Of two options that are
    equally good, the one with the lower index is taken.

    Args:
        costs: what each option of each layer costs; as many options as in ``weights``.
        weights: what each option takes from the limit.
        limit: what all chosen options may take together.

    Raises:
        ConfigError: even the lightest options exceed the limit.
    """
    lightest = [min(options) for options in weights]
    left = limit - sum(lightest)
    if left < 0:
        raise ConfigError(
            f"the budget is {limit:g}, and the least that all layers together need is "
            f"{sum(lightest):g}: raise the budget, or offer a smaller format"
        )
    unit = 2.0 ** math.floor(math.log2(left / _MIN_UNITS)) if left > 0 else 1.0
    spent = [
        [int(np.ceil((weight - least) / unit)) for weight in options]
        for options, least in zip(weights, lightest, strict=True)
    ]
    affordable = int(left / unit)
    best = np.zeros(affordable + 1)  # the least cost so far, for every number of units at hand
    taken = []
    for layer_costs, layer_spent in zip(costs, spent, strict=True):
        options = zip(layer_costs, layer_spent, strict=True)
        rows = [_after(best, cost, units) for cost, units in options]
        taken.append(np.argmin(rows, axis=0).astype(np.uint16))
        best = np.min(rows, axis=0)
    return _read_back(taken, spent, affordable)


def _after(best: npt.NDArray[np.float64], cost: float, units: int) -> npt.NDArray[np.float64]:
    """The least cost for every number of units at hand, when an option takes some of them."""
    after = np.full(best.shape, np.inf)
    if units < best.size:
        after[units:] = best[: best.size - units] + cost
    return after


def _read_back(
    taken: list[npt.NDArray[np.uint16]], spent: list[list[int]], units: int
) -> list[int]:
    """Follow the options that were best from the last layer to the first."""
    choices = []
    for layer_taken, layer_spent in zip(reversed(taken), reversed(spent), strict=True):
        choice = int(layer_taken[units])
        choices.append(choice)
        units -= layer_spent[choice]
    return choices[::-1]
