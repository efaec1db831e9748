"""``thinwire validate``: the planner against published measurements, and against the lab's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from thinwire.cli.path_option import named_path

__all__ = ["validate"]

BOUND_BROKEN = 1


def validate(
    rows: Annotated[
        bool, typer.Option("--rows", help="Print every row, not only the step times.")
    ] = False,
    cells: Annotated[
        Path | None,
        typer.Option(
            parser=named_path,
            metavar="FILE",
            help="Hold it against steps measured in the lab too: cells.json, as "
            "benchmarks/planner/run.py writes it.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document and nothing else.")
    ] = False,
) -> int:
    """Hold the planner's predictions against what others measured and published.

    Each cluster has at most one free constant, fitted on the first row that its source lists; the
    errors are those of the other rows. Cells of the lab have bounds of their own: for the median
    error, for nine cells of ten, and for the choice. Exit code 1 when a stated bound is broken.

    Example: thinwire validate --rows
    """
    from thinwire.planner.validation import validate as validated
    from thinwire.planner.validation.lab_cells import read_lab_cells

    report = validated()
    lab = None if cells is None else read_lab_cells(cells)
    holds = report.holds and (lab is None or lab.holds)
    if as_json:
        document = report.to_json() | ({} if lab is None else {"lab": lab.to_json()})
        document["holds"] = holds
        typer.echo(json.dumps(document, indent=2, allow_nan=False))
    else:
        from thinwire.cli.validation_view import print_lab_report, print_report

        print_report(report, all_rows=rows)
        if lab is not None:
            print_lab_report(lab)
    return 0 if holds else BOUND_BROKEN
