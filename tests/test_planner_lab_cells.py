"""Cells of the lab: predicted anew from their hardware file, errors and choices summed up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner_files import CELLS
from thinwire.cli.app import main
from thinwire.errors import ConfigError
from thinwire.planner.validation.lab_cells import Cell, LabComparison, LabReport, read_lab_cells

HARDWARE = """
[device]
preset = "cpu"

[link]
bit_per_s = 2e8
latency_s = 1e-4
"""


def cells_file(folder: Path, **changes: Any) -> Path:
    (folder / "lab.toml").write_text(HARDWARE)
    entry = {
        **CELLS,
        "link": {"requested_bit_per_s": 2e8, "measured_bit_per_s": 2e8},
        "runs": [
            {"recipe": recipe, "step_s": {"median": 0.1, "min": 0.1, "max": 0.1}}
            for recipe in ("zero3", "thin")
        ],
        **changes,
    }
    file = folder / "cells.json"
    file.write_text(json.dumps({"comparisons": {"a lab": entry}}))
    return file


def report(*errors: float) -> LabReport:
    cells = tuple(Cell(recipe=str(e), measured_s=1.0, predicted_s=1 + e) for e in errors)
    return LabReport((LabComparison(name="made", cells=cells),))


def test_errors_are_summed_up() -> None:
    made = report(*(0.01 * n for n in range(1, 11)), -0.5)
    assert made.median_error == pytest.approx(0.06)
    # nine of ten of 11 cells are 10: the largest is left out
    assert made.p90_error == pytest.approx(0.10)


@pytest.mark.parametrize(("second", "is_well_chosen"), [(1.04, True), (1.06, False)])
def test_a_choice_may_be_near_the_fastest(second: float, is_well_chosen: bool) -> None:
    cells = (
        Cell(recipe="chosen", measured_s=second, predicted_s=1.0),
        Cell(recipe="fastest", measured_s=1.0, predicted_s=2.0),
    )
    comparison = LabComparison(name="made", cells=cells)
    assert comparison.first.recipe == "chosen"
    assert comparison.is_well_chosen is is_well_chosen


def test_every_cell_is_predicted(tmp_path: Path) -> None:
    (comparison,) = read_lab_cells(cells_file(tmp_path)).comparisons
    assert [cell.recipe for cell in comparison.cells] == ["zero3", "thin"]
    assert all(cell.predicted_s > 0 for cell in comparison.cells)


def test_the_measured_link_counts(tmp_path: Path) -> None:
    usual = read_lab_cells(cells_file(tmp_path)).cells[0].predicted_s
    slow = {"requested_bit_per_s": 2e8, "measured_bit_per_s": 1e7}
    assert read_lab_cells(cells_file(tmp_path, link=slow)).cells[0].predicted_s > usual


@pytest.mark.parametrize("changes", [{"runs": []}, {"runs": [{}]}, {"link": 3}, {"hosts": {}}])
def test_a_file_of_something_else(tmp_path: Path, changes: dict[str, Any]) -> None:
    file = cells_file(tmp_path, **changes)
    # 1 would say that a bound is broken
    assert main(["validate", "--cells", str(file)]) == 2


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    missing = tmp_path / "none.json"
    assert main(["validate", "--cells", str(missing)]) == 2
    with pytest.raises(ConfigError, match=r"cannot be read .*; give the cells\.json"):
        read_lab_cells(missing)


@pytest.mark.parametrize(
    ("errors", "holds"),
    [((0.0, 0.05), True), ((0.08, 0.09), False), ((0.0,) * 8 + (0.16,) * 2, False)],
)
def test_bounds_are_for_the_median_and_for_nine_of_ten(
    errors: tuple[float, ...], holds: bool
) -> None:
    assert report(*errors).holds is holds


def test_validate_prints_them_and_a_broken_bound_is_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = cells_file(tmp_path)
    assert main(["validate", "--cells", str(file)]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "2 cells" in printed
    assert "A bound is broken" in printed
    assert main(["validate", "--cells", str(file), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["holds"] is document["lab"]["holds"] is False
    measured = {cell.recipe: cell.predicted_s for cell in read_lab_cells(file).cells}
    runs = [
        {"recipe": recipe, "step_s": {"median": s, "min": s, "max": s}}
        for recipe, s in measured.items()
    ]
    assert main(["validate", "--cells", str(cells_file(tmp_path, runs=runs)), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["lab"]["holds"] is True
    assert len(document["lab"]["comparisons"][0]["cells"]) == 2


def test_the_cells_that_are_shipped_can_be_predicted() -> None:
    """Their hardware files are of the present form."""
    shipped = Path(__file__).parent.parent / "benchmarks" / "planner" / "cells.json"
    assert len(read_lab_cells(shipped).cells) >= 24
