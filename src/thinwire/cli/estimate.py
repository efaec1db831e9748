"""``thinwire estimate``: one transfer, every format side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from thinwire.cli.path_option import named_path
from thinwire.errors import ConfigError

__all__ = ["estimate"]


def estimate(  # noqa: PLR0913 - typer reads the options from the signature
    parameters: Annotated[
        str, typer.Option(metavar="COUNT", help="How many, such as 1e6, 125M or 1.3B.")
    ],
    link: Annotated[
        str,
        typer.Option(metavar="RATE", help="100mbit is bits per second, 12.5MB/s bytes per second."),
    ],
    latency: Annotated[
        str, typer.Option(metavar="TIME", help="One way, such as 10ms or 20us.")
    ] = "100us",
    loss: Annotated[
        float, typer.Option(help="Share of packets lost; bounds the rate of TCP.")
    ] = 0.0,
    protocol: Annotated[
        str | None,
        typer.Option(
            metavar="ideal|tcp|rdma|grpc",
            help="What wraps the payload. Default: ideal, which is the rate and the latency and "
            "nothing else; with a loss tcp.",
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(help="What encodes and decodes: cpu, a100-40gb, ...")
    ] = "cpu",
    formats: Annotated[
        str | None,
        typer.Option(
            help="Formats, separated by commas, such as bf16,int4/128. Default: one of each family "
            "and width.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document and nothing else.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            parser=named_path,
            metavar="FILE",
            help="Write a page with a chart of time against bandwidth that needs no other file. "
            "Its folder is made.",
        ),
    ] = None,
) -> None:
    """Price one transfer of parameters in every format: bytes, time on the link, time in the codec.

    Says for each format below which bandwidth it is faster than fp32.

    Example: thinwire estimate --parameters 1e6 --link 100mbit --latency 10ms
    """
    from thinwire.output_path import prepare_output
    from thinwire.planner.estimate import DEFAULT_FORMATS
    from thinwire.planner.estimate import estimate as price
    from thinwire.planner.hardware_file import load_device, load_link
    from thinwire.quantities import parse_bit_rate, parse_count, parse_duration

    if html is not None:
        prepare_output(html)
    numbers = {
        "bit_per_s": parse_bit_rate(link),
        "latency_s": parse_duration(latency),
        "loss": loss,
    }
    priced = price(
        parse_count(parameters),
        load_link(protocol or ("tcp" if loss else "ideal"), numbers),
        load_device(device),
        DEFAULT_FORMATS if formats is None else _listed(formats),
    )
    if html is not None:
        from thinwire.planner.estimate_page import write_estimate_page

        write_estimate_page(html, priced)
    if as_json:
        typer.echo(json.dumps(priced.to_json(), indent=2, allow_nan=False))
    else:
        from thinwire.cli.estimate_view import print_estimate

        print_estimate(priced, page=html)


def _listed(text: str) -> tuple[str, ...]:
    """The formats of a list, each of which gets a row of its own."""
    from thinwire.formats import parse_format

    formats = [parse_format(item.strip()) for item in text.split(",")]
    for index, item in enumerate(formats):
        if item in formats[:index]:
            raise ConfigError(f"format {str(item)!r} is listed twice: name each format once")
        if item.rank is not None and item.shape is None:
            raise ConfigError(
                f"format {str(item)!r}: its size depends on the shape of the matrix; write "
                f"{item}/ROWSxCOLUMNS, whose product is the number of parameters"
            )
    return tuple(map(str, formats))
