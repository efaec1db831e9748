"""``thinwire inspect``: what formats do to a checkpoint or a dump of gradients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from thinwire.cli.path_option import named_path

__all__ = ["inspect"]


def inspect(
    files: Annotated[
        list[Path],
        typer.Argument(
            parser=named_path,
            metavar="FILE",
            help="A safetensors file, a file of torch.save (a checkpoint, a state dict, a dict of "
            "gradients), a *.index.json with its shards, or a Hugging Face folder.",
        ),
    ],
    formats: Annotated[
        str | None,
        typer.Option(
            help="Formats, separated by commas. Default: int8/128, e4m3/128, int4/128, "
            "int4/128+hadamard, log4/128, int2/64.",
            show_default=False,
        ),
    ] = None,
    layers: Annotated[
        str,
        typer.Option(
            metavar="PATTERNS",
            help="Shell patterns on the names of layers, separated by commas, in any case.",
        ),
    ] = "*",
    exact: Annotated[
        str,
        typer.Option(
            metavar="PATTERNS",
            help="What travels exactly and is not measured, as a recipe's field of that name says; "
            "none measures every layer.",
        ),
    ] = "*norm*,*bias,1d",
    rank_by: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT",
            help="The format that says which layers are worst. Default: the first of 4 bits.",
            show_default=False,
        ),
    ] = None,
    top: Annotated[
        int,
        typer.Option(
            min=0, help="How many of the worst layers are printed, and get a histogram in the page."
        ),
    ] = 6,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document and nothing else.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            parser=named_path,
            metavar="FILE",
            help="Write a page with charts and histograms that needs no other file. Its folder "
            "is made; an input is never overwritten.",
        ),
    ] = None,
) -> None:
    """Send every layer of a file in several formats, and show what arrives.

    Names the layers that a format of 4 bits would hurt. Reads tensors one at a time, runs no code
    from a file, and needs no model.

    Example: thinwire inspect model.safetensors --formats int4/128,int4/128+hadamard
    """
    from thinwire.cli.compiling import compilation_told
    from thinwire.cli.inspection_view import InspectionProgress, print_inspection
    from thinwire.formats import parse_format
    from thinwire.inspection import InspectRequest, open_source
    from thinwire.inspection import inspect as inspect_sources
    from thinwire.inspection.request import (
        DEFAULT_FORMATS,
        parse_exact,
        parse_formats,
        parse_patterns,
    )
    from thinwire.output_path import prepare_output

    request = InspectRequest(
        formats=parse_formats(",".join(DEFAULT_FORMATS) if formats is None else formats),
        patterns=parse_patterns(layers, "--layers"),
        exact=parse_exact(exact),
        top=top,
        rank_by=None if rank_by is None else parse_format(rank_by),
    )
    sources = [open_source(path) for path in files]
    if html is not None:
        prepare_output(html, inputs=[file for source in sources for file in source.files])
    with compilation_told(), InspectionProgress() as progress:
        inspection = inspect_sources(sources, request, progress)
    if html is not None:
        from thinwire.inspection.inspection_page import write_inspection_page

        write_inspection_page(html, inspection)
    if as_json:
        typer.echo(json.dumps(inspection.to_json(), indent=2, allow_nan=False))
    else:
        print_inspection(inspection, top=top, page=html)
