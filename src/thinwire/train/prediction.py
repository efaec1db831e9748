"""The planner's step times for a comparison, from a calibrated hardware file."""

from __future__ import annotations

from pathlib import Path

from thinwire.errors import ConfigError
from thinwire.planner.cluster_file import KIND, read_cluster_file
from thinwire.planner.hardware import Cluster
from thinwire.planner.models import parse_model
from thinwire.planner.prediction import step_s
from thinwire.planner.request import ClusterRequest
from thinwire.planner.setting import Setting
from thinwire.recipe import Recipe
from thinwire.table_file import file_label
from thinwire.train.compare import CompareRequest
from thinwire.train.comparison import Link
from thinwire.train.model_spec import PRESETS, ModelSpec

__all__ = ["PlannedSteps"]


class PlannedSteps:
    """Foretells steps from a hardware file; a :class:`thinwire.train.compare.Predictor`.

    A link is taken as it was measured. What was calibrated over a shaped link says nothing of one
    that is not shaped, nor the other way round: then nothing is foretold.

    Args:
        file: as ``thinwire calibrate`` writes it.
        request: the comparison.

    Raises:
        ConfigError: the file cannot be read, or was calibrated with other hosts or ranks, which
            share the machine's processors differently.
    """

    def __init__(self, file: Path, request: CompareRequest) -> None:
        counts = read_cluster_file(file).get("cluster", {})
        self._is_shaped = bool(counts.get("shaped", request.link_bit_per_s is not None))
        asked = {"hosts": request.hosts, "ranks_per_host": request.ranks_per_host}
        for name, count in asked.items():
            if counts.get(name, count) != count:
                raise ConfigError(
                    f"{file_label(KIND, file)}: calibrated with {name} = {counts[name]}, but the "
                    f"comparison has {count}; calibrate again with --hosts {request.hosts} "
                    f"--ranks {request.ranks_per_host}"
                )
        self._cluster = ClusterRequest(
            hosts=request.hosts, ranks=request.ranks_per_host, file=file
        ).cluster()

    def __call__(
        self, recipe: Recipe, model: ModelSpec, request: CompareRequest, link: Link | None
    ) -> float | None:
        """Seconds per step, or ``None`` where the file says nothing of such a link."""
        del model  # the planner reads the request's own words
        cluster = self._over(link, request)
        if cluster is None:
            return None
        setting = Setting(
            workload=parse_model(_as_planned(request.model), tokens=request.seq_len),
            cluster=cluster,
            micro_batch=request.micro_batch,
        )
        return step_s(setting, recipe)

    def _over(self, link: Link | None, request: CompareRequest) -> Cluster | None:
        """The calibrated cluster over the link of a comparison."""
        if request.hosts == 1:
            return self._cluster
        if self._is_shaped != (link is not None):
            return None
        return self._cluster if link is None else self._cluster.with_link(link.measured_bit_per_s)


def _as_planned(model: str) -> str:
    """A preset of the trainer as the planner reads it."""
    return str(PRESETS[model]) if model in PRESETS else model
