"""``thinwire calibrate``: measures this machine and its links for the planner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from thinwire.cli.path_option import named_path
from thinwire.errors import ConfigError

__all__ = ["calibrate"]

NOT_TRUSTWORTHY = 4


def calibrate(  # noqa: PLR0913 - typer reads the options from the signature
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            parser=named_path,
            metavar="FILE",
            help="Where to write the hardware file (TOML), which plan and compare take as "
            "--cluster. Its folder is made.",
        ),
    ] = Path("hardware.toml"),
    hosts: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Hosts: network namespaces of this machine, or loopback without the privilege. "
            "Default: 2. Under torchrun its hosts are measured.",
        ),
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(min=1, help="Ranks on each host. Default: 1.")
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="Rate of every host's link in both directions, such as 200mbit. Default: not "
            "shaped.",
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            metavar="cpu|cuda",
            help="cpu measures processors and gloo; cuda devices and NCCL, and takes no --link.",
        ),
    ] = "cpu",
    preset: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Device preset for what is not measured, such as a100-40gb for cuda.",
        ),
    ] = "cpu",
    disk: Annotated[
        Path | None,
        typer.Option(
            parser=named_path,
            metavar="FOLDER",
            help="Folder on the disk to measure. Default: that of the hardware file.",
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
    """Measure kernels, arithmetic, memory, disk and collectives, and write a hardware file.

    All ranks measure at once, as they train. The numbers hold for as many hosts and ranks as were
    measured: those of the lab, or under torchrun (torchrun ... -m thinwire calibrate) its own.
    Exit code 4, and no file, when repeated measurements disagree too much.

    Example: thinwire calibrate --hosts 2 --link 200mbit --output lab.toml
    """
    from thinwire.cli.calibration_view import (
        CalibrationProgress,
        explain_refusal,
        print_calibration,
    )
    from thinwire.lab import Layout
    from thinwire.output_path import prepare_output
    from thinwire.quantities import parse_bit_rate
    from thinwire.train.calibration import calibration, joined

    launched = joined.torchrun_layout()
    if launched is not None and (hosts, ranks, link) != (None, None, None):
        raise ConfigError(
            "--hosts, --ranks and --link build a lab, but torchrun has started ranks on hosts of "
            "its own: leave them out"
        )
    layout = launched or Layout(
        hosts=2 if hosts is None else hosts,
        ranks_per_host=1 if ranks is None else ranks,
        link_bit_per_s=None if link is None else parse_bit_rate(link),
    )
    prepare_output(output)
    request = calibration.CalibrationRequest(
        layout=layout,
        rounds=rounds,
        tolerance=tolerance,
        device=device,
        preset=preset,
        disk=output.absolute().parent if disk is None else disk,
    )
    with CalibrationProgress() as progress:
        if launched is None:
            found = calibration.calibrate(request, tell=progress.tell)
        else:
            joint = joined.calibrate_joined(request, tell=progress.tell)
            if joint is None:
                return 0  # rank 0 judges and writes
            found = joint
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
