"""The planner against steps that were measured in the lab, from a calibration of the same lab.

A cell is one recipe over one network with one model. The result file names the hardware file that
``thinwire calibrate`` wrote for its network, so that every version of the planner can be held
against the same measurements.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thinwire.errors import ConfigError, InputError
from thinwire.file_kind import read_file_text
from thinwire.planner.models import parse_model
from thinwire.planner.prediction import step_s
from thinwire.planner.request import ClusterRequest
from thinwire.planner.setting import Setting
from thinwire.planner.value_form import is_number
from thinwire.recipes import parse_recipe

__all__ = [
    "BOUND_MEDIAN",
    "BOUND_P90",
    "CLOSE",
    "Cell",
    "LabComparison",
    "LabReport",
    "read_lab_cells",
]

CLOSE = 0.05  # a recipe this near to the fastest counts as the right choice
# promised of cells measured on an idle machine
BOUND_MEDIAN, BOUND_P90 = 0.07, 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One recipe's median step, measured and predicted.

    Attributes:
        recipe: its text.
        measured_s: median of the measured steps.
        predicted_s: by the planner.
    """

    recipe: str
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        """The prediction's error as a share of the measurement, with its sign."""
        return self.predicted_s / self.measured_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LabComparison:
    """The cells of one network and one model.

    Attributes:
        name: hosts, link and model.
        cells: in the order in which they were run.
    """

    name: str
    cells: tuple[Cell, ...]

    @property
    def first(self) -> Cell:
        """The one that is predicted to be the fastest."""
        return min(self.cells, key=lambda cell: cell.predicted_s)

    @property
    def loss(self) -> float:
        """How much longer the first one really takes than the fastest, as a share of that."""
        return self.first.measured_s / min(cell.measured_s for cell in self.cells) - 1

    @property
    def is_well_chosen(self) -> bool:
        """Whether the first one is the fastest or nearly so."""
        return self.loss <= CLOSE


@dataclass(frozen=True, slots=True)
class LabReport:
    """All comparisons of a result file.

    Attributes:
        comparisons: at least one.
    """

    comparisons: tuple[LabComparison, ...]

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Of all comparisons."""
        return tuple(cell for comparison in self.comparisons for cell in comparison.cells)

    @property
    def median_error(self) -> float:
        """The median of the errors' sizes."""
        return statistics.median(abs(cell.error) for cell in self.cells)

    @property
    def p90_error(self) -> float:
        """The size that nine cells of ten do not exceed."""
        errors = sorted(abs(cell.error) for cell in self.cells)
        return errors[math.ceil(0.9 * len(errors)) - 1]

    @property
    def well_chosen(self) -> int:
        """Comparisons in which the first one is the fastest or nearly so."""
        return sum(comparison.is_well_chosen for comparison in self.comparisons)

    @property
    def holds(self) -> bool:
        """Whether the promised bounds are kept and every choice is right."""
        within = self.median_error <= BOUND_MEDIAN and self.p90_error <= BOUND_P90
        return within and self.well_chosen == len(self.comparisons)

    def to_json(self) -> dict[str, Any]:
        """What ``thinwire validate --cells FILE --json`` adds to its document."""
        return {
            "holds": self.holds,
            "median_error": self.median_error,
            "bound_median": BOUND_MEDIAN,
            "p90_error": self.p90_error,
            "bound_p90": BOUND_P90,
            "well_chosen": self.well_chosen,
            "comparisons": [
                {
                    "name": comparison.name,
                    "first": comparison.first.recipe,
                    "loss": comparison.loss,
                    "cells": [
                        {
                            "recipe": cell.recipe,
                            "measured_s": cell.measured_s,
                            "predicted_s": cell.predicted_s,
                            "error": cell.error,
                        }
                        for cell in comparison.cells
                    ],
                }
                for comparison in self.comparisons
            ],
        }


def read_lab_cells(path: Path) -> LabReport:
    """Predict every cell of a result file anew.

    Args:
        path: ``cells.json`` of ``benchmarks/planner/run.py``; hardware files are beside it.

    Raises:
        InputError: the file cannot be read, holds no comparisons, or a number in it cannot have
            been measured.
        ConfigError: a hardware file, model or recipe in it is not valid.
    """
    try:
        comparisons = json.loads(read_file_text(path))["comparisons"]
        report = LabReport(
            tuple(_comparison(name, entry, path.parent) for name, entry in comparisons.items())
        )
    except (ConfigError, InputError):
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"cells {path}: cannot be read ({reason})") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"cells {path}: not a result of benchmarks/planner/run.py; run that, or give the "
            "cells.json that it wrote"
        ) from error
    if not report.cells:
        raise InputError(f"cells {path}: holds no measurement; run benchmarks/planner/run.py")
    return report


def _comparison(name: str, entry: Mapping[str, Any], folder: Path) -> LabComparison:
    for count in ("hosts", "ranks_per_host", "seq", "micro_batch"):
        if type(entry[count]) is not int:
            raise InputError(f"cells: {name}: {count} = {entry[count]!r} is not a whole number")
    cluster = ClusterRequest(
        hosts=entry["hosts"], ranks=entry["ranks_per_host"], file=folder / entry["hardware"]
    ).cluster()
    if entry["link"] is not None:
        rate = entry["link"]["measured_bit_per_s"]
        cluster = cluster.with_link(_measured(f"{name}: the link's rate", rate))
    setting = Setting(
        workload=parse_model(entry["model"], tokens=entry["seq"]),
        cluster=cluster,
        micro_batch=entry["micro_batch"],
    )
    return LabComparison(
        name=name,
        cells=tuple(_cell(setting, name, run) for run in entry["runs"]),
    )


def _cell(setting: Setting, name: str, run: Mapping[str, Any]) -> Cell:
    recipe = run["recipe"]
    return Cell(
        recipe=recipe,
        measured_s=_measured(f"{name}: {recipe}: the median step", run["step_s"]["median"]),
        predicted_s=step_s(setting, parse_recipe(recipe)),
    )


def _measured(what: str, value: Any) -> float:
    """A rate or a time that can have been measured."""
    if not is_number(value) or value <= 0:
        raise InputError(
            f"cells: {what} is {value!r}, which cannot have been measured; run "
            "benchmarks/planner/run.py again"
        )
    return float(value)
