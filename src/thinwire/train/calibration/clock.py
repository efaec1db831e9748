"""Times an action on all ranks at once, as they run at once in a training step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

__all__ = ["Case", "time_together"]

MOST_CALLS = 2000


@dataclass(slots=True, kw_only=True)
class Case:
    """Something to time.

    Attributes:
        figure: see :class:`thinwire.train.calibration.sample.Sample`.
        case: the same.
        size: the same.
        action: what is timed.
        calls: in a row, the same number on every rank; found when first timed.
    """

    figure: str
    size: float
    action: Callable[[], object]
    case: str = ""
    calls: int = field(default=0)


def time_together(case: Case, shortest_s: float) -> float:
    """Seconds of one call while all ranks make it. A collective call.

    Calls follow each other for at least ``shortest_s``, so that ranks that share processors take
    turns within the measurement, not around it.

    Args:
        case: its action may itself be a collective.
        shortest_s: that one measurement lasts.
    """
    if case.calls == 0:
        case.action()  # compiles, connects, allocates
        dist.barrier()
        start_s = time.perf_counter()
        case.action()
        longest = torch.tensor(time.perf_counter() - start_s, dtype=torch.float64)
        dist.all_reduce(longest, op=dist.ReduceOp.MAX)
        case.calls = min(MOST_CALLS, max(1, math.ceil(shortest_s / longest.item())))
    dist.barrier()
    start_s = time.perf_counter()
    for _ in range(case.calls):
        case.action()
    return (time.perf_counter() - start_s) / case.calls
