"""``thinwire plan``: memory, bytes and step time of every recipe, before any machine is rented."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from thinwire.cli.path_option import named_path

__all__ = ["plan"]

NOTHING_FITS = 3

WORKLOAD = "What is trained"
CLUSTER = "Where it runs"
OUTPUT = "What is written"


def plan(  # noqa: PLR0913 - typer reads the options from the signature
    model: Annotated[
        str,
        typer.Option(
            help="gpt:LAYERSxHIDDENxHEADS (gpt:24x2048x16, or just 24x2048x16), a preset "
            "(llama-2-7b), a Hugging Face config.json or its folder, or a number of parameters "
            "(1.3B), for which a shape is assumed.",
            rich_help_panel=WORKLOAD,
        ),
    ],
    seq: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens per sequence. Default: 2048, or as many as the model has positions where "
            "those are fewer.",
            rich_help_panel=WORKLOAD,
        ),
    ] = None,
    micro_batch: Annotated[
        int, typer.Option(min=1, help="Sequences per rank at once.", rich_help_panel=WORKLOAD)
    ] = 1,
    accumulate: Annotated[
        int, typer.Option(min=1, help="Micro-batches per step.", rich_help_panel=WORKLOAD)
    ] = 1,
    recipes: Annotated[
        str | None,
        typer.Option(
            help="Recipes, separated by commas. Default: all named ones.",
            show_default=False,
            rich_help_panel=WORKLOAD,
        ),
    ] = None,
    search: Annotated[
        bool,
        typer.Option(
            "--search",
            help="Plan a grid of formats, accumulation, recompute, optimizer states and offload "
            "around the named recipes, and show the best ten.",
            rich_help_panel=WORKLOAD,
        ),
    ] = False,
    hosts: Annotated[
        int | None, typer.Option(help="Hosts. Default: 1.", rich_help_panel=CLUSTER)
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(help="Ranks on each host. Default: 1.", rich_help_panel=CLUSTER)
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="What each rank computes on: a100-40gb, h100-80gb, rtx4090, cpu, ... Default: "
            "cpu.",
            rich_help_panel=CLUSTER,
        ),
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="Rate of every host's link, each way: 100gbit is bits per second, 12.5GB/s bytes "
            "per second.",
            rich_help_panel=CLUSTER,
        ),
    ] = None,
    latency: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="One way across hosts, such as 20us. Default: 20us, for CPUs 100us.",
            rich_help_panel=CLUSTER,
        ),
    ] = None,
    loss: Annotated[
        float | None,
        typer.Option(help="Share of packets lost across hosts.", rich_help_panel=CLUSTER),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            metavar="ideal|tcp|rdma|grpc",
            help="Across hosts. Default: rdma, for CPUs or with a loss tcp.",
            rich_help_panel=CLUSTER,
        ),
    ] = None,
    within: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="Between two devices of a host, each way. Default: the device's own.",
            rich_help_panel=CLUSTER,
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES",
            help="Of each device, such as 40GB. Default: the device's own.",
            rich_help_panel=CLUSTER,
        ),
    ] = None,
    host_memory: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES",
            help="Of each host, such as 1TB. Default: unknown.",
            rich_help_panel=CLUSTER,
        ),
    ] = None,
    tp: Annotated[int, typer.Option(help="Tensor-parallel ranks.", rich_help_panel=CLUSTER)] = 1,
    pp: Annotated[int, typer.Option(help="Pipeline stages.", rich_help_panel=CLUSTER)] = 1,
    cluster: Annotated[
        Path | None,
        typer.Option(
            parser=named_path,
            metavar="FILE",
            help="A hardware file (TOML), as calibrate writes it; the options above replace it.",
            rich_help_panel=CLUSTER,
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
) -> int:
    """Predict memory, bytes and step time of every recipe for a model on a cluster.

    Says which recipe to take and why, and from which bandwidth on compression stops paying. Exit
    code 3 when nothing fits.

    Example: thinwire plan --model gpt:24x2048x16 --hosts 8 --ranks 4 --device a100-40gb --link
    100gbit
    """
    from thinwire.output_path import prepare_output
    from thinwire.planner.candidates import grid, named_recipes
    from thinwire.planner.description import describe
    from thinwire.planner.ranking import make_plan
    from thinwire.planner.request import ClusterRequest, PlanRequest
    from thinwire.recipes import parse_recipes, recipe_files

    if html is not None:
        files = recipe_files(recipes or "")
        prepare_output(html, inputs=[Path(model.strip()), cluster, *files])
    request = PlanRequest(
        model=model,
        seq=seq,
        micro_batch=micro_batch,
        accumulate=accumulate,
        tp=tp,
        pp=pp,
        cluster=ClusterRequest(
            hosts=hosts,
            ranks=ranks,
            device=device,
            link=link,
            within=within,
            latency=latency,
            loss=loss,
            protocol=protocol,
            memory=memory,
            host_memory=host_memory,
            file=cluster,
        ),
    )
    setting = request.setting()
    chosen = named_recipes(setting) if recipes is None else parse_recipes(recipes)
    if search:
        chosen = tuple(dict.fromkeys((*chosen, *grid(setting))))
    made = make_plan(setting, chosen, limit=10 if search else None)
    if html is not None:
        from thinwire.planner.plan_page import write_plan_page

        write_plan_page(html, made)
    if as_json:
        document = {**describe(setting), **made.to_json()}
        typer.echo(json.dumps(document, indent=2, allow_nan=False))
    else:
        from thinwire.cli.plan_view import print_plan

        print_plan(made, page=html)
    return 0 if made.choice is not None else NOTHING_FITS
