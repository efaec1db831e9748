"""``thinwire compare``: the same training under several recipes, side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from thinwire.cli.path_option import named_path

__all__ = ["compare"]

TRAINING = "What is trained"
NETWORK = "Where it runs"
OUTPUT = "What is written"


def compare(  # noqa: PLR0913 - typer reads the options from the signature
    recipes: Annotated[
        str,
        typer.Option(
            help="Recipes, separated by commas; the first is what the others are held against. A "
            "recipe is a name, a name with overrides after colons (zeropp:grads=int8/128) or a "
            "TOML file. Default: stock FSDP2 in bf16 and in fp32, qsdp, zeropp.",
            show_default=False,
            rich_help_panel=TRAINING,
        ),
    ] = "zero3,zero3:compute=fp32,qsdp,zeropp",
    model: Annotated[
        str,
        typer.Option(
            help="gpt:LAYERSxHIDDENxHEADS (gpt:6x512x8, or just 6x512x8), a preset (tiny, small, "
            "medium, large), a Hugging Face config.json or its folder, or a number of parameters "
            "(25M).",
            rich_help_panel=TRAINING,
        ),
    ] = "small",
    data: Annotated[
        Path | None,
        typer.Option(
            parser=named_path,
            metavar="PATH",
            help="Text to train on, byte by byte: a file, or a folder read recursively. The last "
            "5 % are held out. Default: the source of Python's standard library.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    seq: Annotated[
        int, typer.Option(min=1, help="Bytes per sequence.", rich_help_panel=TRAINING)
    ] = 128,
    micro_batch: Annotated[
        int, typer.Option(min=1, help="Sequences per rank and step.", rich_help_panel=TRAINING)
    ] = 4,
    steps: Annotated[
        int,
        typer.Option(
            min=1,
            help="Optimizer steps per recipe. Figures leave out the first two, where there are "
            "more, and with local steps are of whole rounds.",
            rich_help_panel=TRAINING,
        ),
    ] = 20,
    learning_rate: Annotated[
        float,
        typer.Option(help="Of AdamW, at its highest.", rich_help_panel=TRAINING),
    ] = 1e-3,
    seed: Annotated[
        int,
        typer.Option(min=0, help="Of the weights and the data order.", rich_help_panel=TRAINING),
    ] = 0,
    hosts: Annotated[
        int,
        typer.Option(
            min=1,
            help="Hosts: network namespaces of this machine, or loopback without the privilege.",
            rich_help_panel=NETWORK,
        ),
    ] = 2,
    ranks: Annotated[
        int, typer.Option(min=1, help="Ranks on each host.", rich_help_panel=NETWORK)
    ] = 1,
    link: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="Rate of every host's link in both directions: 200mbit and 1gbit are bits per "
            "second, 25MB/s bytes per second. Default: not shaped.",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    also_unshaped: Annotated[
        bool,
        typer.Option(
            "--also-unshaped",
            help="Run all recipes once more without a shaped link, to see where compression does "
            "not pay. Needs --link.",
            rich_help_panel=NETWORK,
        ),
    ] = False,
    device: Annotated[
        str,
        typer.Option(
            metavar="cpu|cuda",
            help="cpu trains over gloo; cuda over NCCL, one device of this machine per rank, and "
            "takes no --link.",
            rich_help_panel=NETWORK,
        ),
    ] = "cpu",
    cluster: Annotated[
        Path | None,
        typer.Option(
            parser=named_path,
            metavar="FILE",
            help="A hardware file that calibrate wrote with the same hosts, ranks and link: shows "
            "the plan's step time beside the measured one.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print one JSON document and nothing else; bytes and seconds are per step.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            parser=named_path,
            metavar="FILE",
            help="Write a page with charts that needs no other file. Its folder is made.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
) -> None:
    """Train the same model on the same data under several recipes, and show what each costs.

    Every recipe runs in fresh processes from the same seed; the last lines say which one pays here.

    Example: thinwire compare --recipes zero3,zeropp --hosts 4 --link 200mbit --html out.html
    """
    from thinwire.cli.comparison_view import ComparisonProgress, print_comparison
    from thinwire.output_path import prepare_output
    from thinwire.quantities import parse_bit_rate
    from thinwire.recipes import parse_recipes, recipe_files
    from thinwire.train import compare as comparing
    from thinwire.train.machine import describe_machine
    from thinwire.train.prediction import PlannedSteps
    from thinwire.train.report import write_report

    request = comparing.CompareRequest(
        recipes=parse_recipes(recipes),
        hosts=hosts,
        ranks_per_host=ranks,
        link_bit_per_s=None if link is None else parse_bit_rate(link),
        also_unshaped=also_unshaped,
        model=model,
        data=data,
        seq_len=seq,
        micro_batch=micro_batch,
        steps=steps,
        seed=seed,
        learning_rate=learning_rate,
        device=device,
    )
    if html is not None:
        prepare_output(html, inputs=[Path(model), data, cluster, *recipe_files(recipes)])
    predict: comparing.Predictor = comparing.no_prediction
    if cluster is not None:
        predict = PlannedSteps(cluster, request)
    with ComparisonProgress() as progress:
        comparison = comparing.compare(request, progress=progress, predict=predict)
    if html is not None:
        write_report(html, comparison, describe_machine())
    if as_json:
        typer.echo(json.dumps(comparison.to_json(), indent=2, allow_nan=False))
    else:
        print_comparison(comparison, page=html)
