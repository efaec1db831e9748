"""From whole training steps to what they cost beyond arithmetic, codecs and messages.

Part of it hides behind messages, so that what is left of a step does not add up: the planner itself
is asked how a step answers to each overhead, and the overheads are moved until the steps fit
(Gauss-Newton). Where messages cease to hide an overhead the slope of a step jumps, and a round may
go astray: the best of all rounds is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from thinwire.planner.hardware import OVERHEADS, Cluster
from thinwire.planner.models.gpt import gpt_workload
from thinwire.planner.prediction import step_s
from thinwire.planner.setting import Setting
from thinwire.recipes import parse_recipe
from thinwire.train.calibration.fit import Residual, least_squares
from thinwire.train.calibration.sample import Sample
from thinwire.train.calibration.steps import FIGURES, OVERHEAD_OF, RUN_MICRO_BATCH, run_shape

__all__ = ["fit_steps", "predicted_step_s"]

# attributes of a device, and by how much each is moved to see how a step answers
NUDGES = {"unit_s": 1e-4, "parameter_s": 1e-10, "step_s": 1e-4}
ROUNDS = 8  # the last one only moves on

Overheads = dict[str, dict[str, float]]


def fit_steps(samples: Sequence[Sample], cluster: Cluster) -> tuple[Overheads, Residual]:
    """The overheads of every kind of wrapping.

    One below zero would be the planner's error elsewhere, and counts as none.

    Args:
        samples: of all ranks at once; those of training steps are looked at.
        cluster: with all else that was calibrated, and no overheads.

    Returns:
        Entries of ``[device]`` in a cluster file, and how far the steps are from them.
    """
    steps = [sample for sample in samples if sample.figure in FIGURES]
    found: Overheads = {name: dict.fromkeys(OVERHEADS, 0.0) for name in NUDGES}
    for kind in OVERHEADS:
        mine = [sample for sample in steps if OVERHEAD_OF[sample.case] == kind]
        for name, seconds in _fitted(mine, kind, cluster).items():
            found[name][kind] = seconds
    fitted = _with(cluster, found)
    pairs = ((predicted_step_s(sample, fitted), sample.median_s) for sample in steps)
    return found, Residual.of("training steps", pairs)


def _fitted(samples: Sequence[Sample], kind: str, cluster: Cluster) -> dict[str, float]:
    measured_s = [sample.median_s for sample in samples]

    def predicted(overheads: dict[str, float]) -> list[float]:
        changed = _with(cluster, {name: {kind: value} for name, value in overheads.items()})
        return [predicted_step_s(sample, changed) for sample in samples]

    # Between errors and shares of a step: by shares alone, a tiny model whose kernels are priced
    # too high would decide what the parameters of a large one cost.
    scales = [math.sqrt(seconds) for seconds in measured_s]

    present = best = dict.fromkeys(NUDGES, 0.0)
    least = math.inf
    for _ in range(ROUNDS):
        now_s = predicted(present)
        error = sum(
            ((now - wanted) / scale) ** 2
            for now, wanted, scale in zip(now_s, measured_s, scales, strict=True)
        )
        if error < least:
            best, least = present, error
        slopes = _slopes(predicted, present, now_s)
        # what the overheads together have to explain, if a step were linear in them
        wanted_s = [
            measured - now + sum(s * v for s, v in zip(row, present.values(), strict=True))
            for measured, now, row in zip(measured_s, now_s, slopes, strict=True)
        ]
        found = least_squares(slopes, wanted_s, scales=scales)
        present = dict(zip(NUDGES, found, strict=True))
    return best


def _slopes(
    predicted: Callable[[dict[str, float]], list[float]],
    present: dict[str, float],
    start_s: list[float],
) -> list[list[float]]:
    """By how much each step grows with each overhead, from where the present ones bring it."""
    columns = [
        [(after - before) / nudge for after, before in zip(moved, start_s, strict=True)]
        for name, nudge in NUDGES.items()
        for moved in [predicted({**present, name: present[name] + nudge})]
    ]
    return [list(row) for row in zip(*columns, strict=True)]


def _with(cluster: Cluster, overheads: Overheads) -> Cluster:
    device = cluster.device
    changes: dict[str, Any] = {
        name: {**getattr(device, name), **by_kind} for name, by_kind in overheads.items()
    }
    return replace(cluster, device=replace(device, **changes))


def predicted_step_s(sample: Sample, cluster: Cluster) -> float:
    """What the planner says of a step that was measured.

    Args:
        sample: of a training step.
        cluster: on which it ran.
    """
    shape, tokens = run_shape(sample.figure, round(sample.size))
    workload = gpt_workload(shape, tokens=tokens)
    setting = Setting(workload=workload, cluster=cluster, micro_batch=RUN_MICRO_BATCH)
    return step_s(setting, parse_recipe(sample.case))
