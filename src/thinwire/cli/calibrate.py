"""``thinwire calibrate``: measures this machine and its links for the planner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["calibrate"]

NOT_TRUSTWORTHY = 4


def calibrate(
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            metavar="FILE",
            help="Where to write the hardware file (TOML), which plan and compare take as "
            "--cluster.",
        ),
    ] = Path("hardware.toml"),
    hosts: Annotated[
        int,
        typer.Option(
            min=1,
            help="Hosts: network namespaces of this machine, or loopback without the privilege.",
        ),
    ] = 2,
    ranks: Annotated[int, typer.Option(min=1, help="Ranks on each host.")] = 1,
    link: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="Rate of every host's link in both directions, such as 200mbit. Default: not "
            "shaped.",
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=2, help="How often everything is measured.")] = 3,
    tolerance: Annotated[
        float,
        typer.Option(help="How far the rounds may be apart, as a share of their median."),
    ] = 0.3,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document and nothing else.")
    ] = False,
) -> int:
    """Measure kernels, arithmetic, memory and collectives, and write a hardware file.

    All ranks measure at once, as they train. The numbers hold for as many hosts and ranks as were
    given. Exit code 4, and no file, when repeated measurements disagree too much.

    Example: thinwire calibrate --hosts 2 --link 200mbit --output lab.toml
    """
    from thinwire.cli.calibration_view import (
        CalibrationProgress,
        explain_refusal,
        print_calibration,
    )
    from thinwire.lab import Layout
    from thinwire.quantities import parse_bit_rate
    from thinwire.train.calibration.calibration import CalibrationRequest
    from thinwire.train.calibration.calibration import calibrate as calibrated
    from thinwire.train.report import check_report_path

    request = CalibrationRequest(
        layout=Layout(
            hosts=hosts,
            ranks_per_host=ranks,
            link_bit_per_s=None if link is None else parse_bit_rate(link),
        ),
        rounds=rounds,
        tolerance=tolerance,
    )
    check_report_path(output)
    with CalibrationProgress() as progress:
        found = calibrated(request, tell=progress.tell)
    if not found.unsteady:
        found.write(output)
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=2, allow_nan=False))
    else:
        print_calibration(found, file=None if found.unsteady else output)
    if found.unsteady:
        typer.echo(explain_refusal(found), err=True)
        return NOT_TRUSTWORTHY
    return 0
