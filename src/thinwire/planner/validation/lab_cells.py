"""The planner against steps that were measured in the lab, from a calibration of the same lab.

A cell is one recipe over one network with one model. The result file names the hardware file that
``thinwire calibrate`` wrote for its network, so that every version of the planner can be held
against the same measurements.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thinwire.errors import ConfigError
from thinwire.planner.models import parse_model
from thinwire.planner.number_range import check_number
from thinwire.planner.prediction import step_s
from thinwire.planner.request import ClusterRequest
from thinwire.planner.setting import Setting
from thinwire.planner.value_form import check_form
from thinwire.quoting import quoted, shortened
from thinwire.recipes import parse_recipe
from thinwire.table_file import errors_in, file_label, read_json

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
KIND = "cells"
ADVICE = "give the cells.json that benchmarks/planner/run.py writes, or run that again"
COUNTS = ("hosts", "ranks_per_host", "seq", "micro_batch")
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
        ConfigError: the file cannot be read, holds no comparisons, lacks a key, or has a number
            that cannot have been measured; or a hardware file, model or recipe of it is not valid.
    """
    content = read_json(path, KIND, ADVICE)
    with errors_in(file_label(KIND, path)):
        entries = _at(content, "", "comparisons", {})
        report = LabReport(
            tuple(_comparison(name, entry, path.parent) for name, entry in entries.items())
        )
        if not report.cells:
            raise ConfigError(f"holds no measurement; {ADVICE}")
    return report


def _comparison(name: str, entry: Any, folder: Path) -> LabComparison:
    where = f"comparisons: {shortened(name)}"
    counts = {count: _at(entry, where, count, 1) for count in COUNTS}
    for count, value in counts.items():
        if not isinstance(value, int) or value < 1:
            raise ConfigError(
                f"{where}: {count} = {quoted(value)} is not a whole number above zero"
            )
    file = folder / _at(entry, where, "hardware", "lab.toml")
    model = _at(entry, where, "model", "tiny")
    with errors_in(where):
        cluster = ClusterRequest(
            hosts=counts["hosts"], ranks=counts["ranks_per_host"], file=file
        ).cluster()
        workload = parse_model(model, tokens=counts["seq"])
    if _at(entry, where, "link") is not None:
        rate = _measured(_at(entry, where, "link", {}), f"{where}: link", "measured_bit_per_s")
        cluster = cluster.with_link(rate)
    setting = Setting(workload=workload, cluster=cluster, micro_batch=counts["micro_batch"])
    runs = _at(entry, where, "runs", [])
    if not runs:
        raise ConfigError(f"{where}: runs is empty; {ADVICE}")
    return LabComparison(
        name=name,
        cells=tuple(
            _cell(setting, f"{where}: runs: entry {n}", run) for n, run in enumerate(runs, 1)
        ),
    )


def _cell(setting: Setting, where: str, run: Any) -> Cell:
    recipe = _at(run, where, "recipe", "zero3")
    steps = _at(run, where, "step_s", {})
    with errors_in(f"{where}: recipe"):
        predicted_s = step_s(setting, parse_recipe(recipe))
    return Cell(
        recipe=recipe,
        measured_s=_measured(steps, f"{where}: step_s", "median"),
        predicted_s=predicted_s,
    )


def _at(table: Any, where: str, key: str, form: Any = None) -> Any:
    """What a table of the file holds under a key.

    Args:
        table: whatever stands where a table should.
        where: the table's place in the file, for messages.
        key: that it must have.
        form: a value of the form that it must have; ``None``: any.
    """
    if not isinstance(table, dict):
        raise ConfigError(f"{where} = {quoted(table)} is no table; {ADVICE}")
    owner = f"{where}: {key}" if where else key
    if key not in table:
        raise ConfigError(f"{owner} is missing; {ADVICE}")
    if form is not None:
        check_form(owner, table[key], form)
    return table[key]


def _measured(table: Any, where: str, key: str) -> float:
    """A rate or a time that can have been measured."""
    value = _at(table, where, key, 1.0)
    check_number(f"{where}: {key}", value)
    return float(value)
