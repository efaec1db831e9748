"""A validation for people: one line a group, and the rows below it."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from thinwire.cli.console import result_console
from thinwire.planner.validation.lab_cells import (
    BOUND_MEDIAN,
    BOUND_P90,
    CLOSE,
    LabComparison,
    LabReport,
)
from thinwire.planner.validation.report import Group, Report
from thinwire.quantities import format_figure

__all__ = ["print_lab_report", "print_report"]

DIGITS = 4


def print_report(report: Report, *, all_rows: bool) -> None:
    """Print every group's errors, then the rows.

    Args:
        report: what to print.
        all_rows: whether rows of bytes and ratios are printed too, beside those of step times.
    """
    console = result_console()
    for group in report.groups:
        console.print(Text(group.name, style="bold"))
        console.print(Text(f"  {group.source}"))
        if group.free is not None:
            console.print(Text(f"  free: {group.free}"))
        console.print(Text(f"  {_verdict(group)}"))
        if all_rows or group.unit == "s":
            console.print(_table(group))
    document = report.to_json()
    console.print(
        Text(
            f"Step times: mean error {document['step_mean_error']:.1%}, largest "
            f"{document['step_max_error']:.1%} over {len(report.step_rows)} predicted rows. "
            f"{'All bounds hold.' if report.holds else 'A bound is broken.'}"
        )
    )


def print_lab_report(report: LabReport) -> None:
    """Print every cell of the lab, then the errors and the choices."""
    console = result_console()
    for comparison in report.comparisons:
        console.print(Text(comparison.name, style="bold"))
        console.print(_lab_table(comparison))
    console.print(
        Text(
            f"The lab: median error {report.median_error:.1%} (bound {BOUND_MEDIAN:.0%}), nine "
            f"cells of ten within {report.p90_error:.1%} (bound {BOUND_P90:.0%}), "
            f"{len(report.cells)} cells. The recipe that the planner ranks "
            f"first is the fastest, or within {CLOSE:.0%} of it, in {report.well_chosen} of "
            f"{len(report.comparisons)} comparisons. "
            f"{'All bounds hold.' if report.holds else 'A bound is broken.'}"
        )
    )


def _lab_table(comparison: LabComparison) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("recipe")
    for heading in ("measured s", "predicted s", "error"):
        table.add_column(heading, justify="right")
    for cell in comparison.cells:
        mark = " (first)" if cell is comparison.first else ""
        table.add_row(
            Text(cell.recipe + mark),
            format_figure(cell.measured_s, DIGITS),
            format_figure(cell.predicted_s, DIGITS),
            f"{cell.error:+.1%}",
        )
    return table


def _verdict(group: Group) -> str:
    text = f"mean error {group.mean_error:.1%}, largest {group.max_error:.1%}"
    bounds = [
        f"{name} {bound:.1%}"
        for name, bound in (("mean", group.bound_mean), ("largest", group.bound_max))
        if bound is not None
    ]
    if not bounds:
        return f"{text}; no bound is promised"
    return f"{text}; bounds {', '.join(bounds)}: {'hold' if group.holds else 'BROKEN'}"


def _table(group: Group) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("row")
    for heading in (f"published {group.unit}", f"predicted {group.unit}", "error"):
        table.add_column(heading, justify="right")
    for row in group.rows:
        error = "fitted" if row.is_fitted else f"{row.error:+.1%}"
        numbers = (format_figure(value, DIGITS) for value in (row.published, row.predicted))
        table.add_row(Text(row.name), *numbers, error)
    return table
