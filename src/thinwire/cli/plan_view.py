"""A plan for people: tables of time and memory, then the reasons."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from thinwire.cli.console import result_console
from thinwire.planner.memory import DeviceBytes
from thinwire.planner.prediction import FIT_WORDS, Prediction
from thinwire.planner.ranking import Plan
from thinwire.planner.recipe_lines import recipe_lines
from thinwire.quantities import (
    format_bit_rate,
    format_bytes,
    format_count,
    format_duration,
    format_numbered,
)

__all__ = ["print_plan"]

UNATTENDED_WIDTH = 140  # its tables have more columns than others
# of a line of a recipe's name, beside the other columns
TIME_NAME_WIDTH, MEMORY_NAME_WIDTH, LEAST_NAME_WIDTH = 48, 26, 16
MEMORY_TERMS = (
    "parameters",
    "gradients",
    "optimizer_states",
    "activations",
    "buffers",
    "replica",
    "residual",
    "allocator",
    "context",
)


def print_plan(plan: Plan, *, page: Path | None) -> None:
    """Print what was planned, the tables and the reasons.

    Args:
        plan: what to print.
        page: the page that was written, to name it.
    """
    console = result_console(UNATTENDED_WIDTH)
    console.print(Text(_headline(plan)))
    for assumption in plan.setting.workload.assumptions:
        console.print(Text(assumption))
    console.print(_time_table(plan))
    console.print(_memory_table(plan))
    for reason in plan.reasons:
        console.print(Text(reason))
    if page is not None:
        console.print(Text(f"page: {page}"))


def _headline(plan: Plan) -> str:
    setting = plan.setting
    workload, cluster = setting.workload, setting.cluster
    sequences = setting.micro_batch * setting.accumulate * setting.group.size
    parameters = format_numbered(format_count(workload.num_parameters), "parameter")
    text = f"{workload.name}: {parameters}, "
    active = workload.active_parameters
    if active < workload.num_parameters:
        text += f"{format_count(active)} of them active, "
    text += f"{format_numbered(sequences, 'sequence')} of "
    text += f"{format_numbered(workload.tokens, 'token')} a step, on "
    text += f"{cluster.hosts} x {cluster.ranks_per_host} {cluster.device.name}"
    if cluster.hosts > 1:
        text += f" over {format_bit_rate(cluster.link.bit_per_s)} a host"
    return text


def _time_table(plan: Plan) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="Time and traffic of one step", title_justify="left")
    _add_names(table, plan)
    for heading in ("step", "compute", "network", "codec", "offload", "bubble", "across", "within"):
        table.add_column(heading, justify="right")
    for prediction in plan.predictions:
        time, sent = prediction.time, prediction.sent
        table.add_row(
            _name(plan, prediction, TIME_NAME_WIDTH),
            format_duration(prediction.step_s),
            *(
                _or_dash(seconds, format_duration)
                for seconds in (
                    time.compute_s,
                    time.exposed_comm_s,
                    time.codec_s,
                    time.offload_s,
                    time.bubble_s,
                )
            ),
            _or_dash(sent.across_bytes, format_bytes),
            _or_dash(sent.within_bytes, format_bytes),
        )
    return table


def _memory_table(plan: Plan) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        title="Memory of the worst rank at its worst moment, and of a host",
        title_justify="left",
    )
    _add_names(table, plan)
    table.add_column("fits")
    table.add_column("total", justify="right")
    shown = [term for term in MEMORY_TERMS if any(_term(p, term) for p in plan.predictions)]
    for term in shown:
        table.add_column(term.replace("_", " "), justify="right")
    table.add_column("host", justify="right")
    for prediction in plan.predictions:
        table.add_row(
            _name(plan, prediction, MEMORY_NAME_WIDTH),
            FIT_WORDS[prediction.fit.verdict],
            format_bytes(prediction.memory.device.total),
            *(_or_dash(_term(prediction, term), format_bytes) for term in shown),
            _or_dash(prediction.memory.host.total, format_bytes),
        )
    return table


def _add_names(table: Table, plan: Plan) -> None:
    """The column of recipes, whose names are broken: cut off, two of a search would look alike."""
    longest = max(len(prediction.recipe.name) for prediction in plan.predictions)
    table.add_column("recipe", overflow="fold", min_width=min(LEAST_NAME_WIDTH, longest))


def _name(plan: Plan, prediction: Prediction, width: int) -> Text:
    chosen = plan.choice is not None and prediction.recipe.name == plan.choice.recipe.name
    lines = recipe_lines(prediction.recipe.name, width)
    return Text(lines, style="bold" if chosen else "")


def _term(prediction: Prediction, term: str) -> float:
    device: DeviceBytes = prediction.memory.device
    value: float = getattr(device, term)
    return value


def _or_dash(value: float, write: object) -> str:
    assert callable(write)
    return str(write(value)) if value else "-"
