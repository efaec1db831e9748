"""``thinwire validate``: the planner against published measurements."""

from __future__ import annotations

import json
from typing import Annotated

import typer

__all__ = ["validate"]

BOUND_BROKEN = 1


def validate(
    rows: Annotated[
        bool, typer.Option("--rows", help="Print every row, not only the step times.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document and nothing else.")
    ] = False,
) -> int:
    """Hold the planner's predictions against what others measured and published.

    Each cluster has at most one free constant, fitted on the first row that its source lists; the
    errors are those of the other rows. Exit code 1 when an error is above its stated bound.

    Example: thinwire validate --rows
    """
    from thinwire.planner.validation import validate as validated

    report = validated()
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=2, allow_nan=False))
    else:
        from thinwire.cli.validation_view import print_report

        print_report(report, all_rows=rows)
    return 0 if report.holds else BOUND_BROKEN
