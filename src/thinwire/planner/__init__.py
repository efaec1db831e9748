"""Predicts memory, bytes and step time of every recipe for a model on a cluster, without torch.

    request      what a user asks -> a setting
      models       a model's parameters and operations       workload.py, operation.py
      hardware     devices, hosts, links, backends            hardware.py, presets/
    setting      a workload on a cluster
    prediction   one recipe in one setting
      traffic      its collectives, byte by byte              layer_calls.py, payload.py
      step         their seconds, and compute's               cost.py, compute.py, timeline.py
      moments      memory at its worst moment                 states.py, activations.py
    ranking      all recipes, the choice, and why             explain.py, break_even.py
    estimate     one transfer in every format
    validation   all of this against published measurements

A number that is not exact has a source: calibrated, published, from a datasheet, given or assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thinwire.planner.hardware import Cluster
    from thinwire.planner.ranking import Plan
    from thinwire.planner.workload import Workload
    from thinwire.recipe import Recipe

__all__ = ["plan"]


def plan(
    workload: Workload,
    cluster: Cluster,
    recipes: Sequence[Recipe],
    *,
    micro_batch: int = 1,
    accumulate: int = 1,
) -> Plan:
    """Predictions for some recipes, best first, with the choice among them and why.

    Args:
        workload: from :func:`thinwire.planner.models.parse_model`.
        cluster: from :class:`thinwire.planner.request.ClusterRequest`.
        recipes: what to compare.
        micro_batch: sequences per rank at once.
        accumulate: micro-batches per optimizer step.

    Raises:
        ConfigError: no recipe, one that the device cannot compute, or a number below 1.
    """
    from thinwire.planner.ranking import make_plan
    from thinwire.planner.setting import Setting

    setting = Setting(
        workload=workload, cluster=cluster, micro_batch=micro_batch, accumulate=accumulate
    )
    return make_plan(setting, recipes)
