"""A comparison for people: progress on standard error while it runs, then tables."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.table import Table
from rich.text import Text

from thinwire.cli.console import BarProgress, result_console
from thinwire.quantities import format_bit_rate, format_count, format_duration, format_numbered
from thinwire.train.comparison import Comparison, Link, Run, Setting
from thinwire.train.progress import StepEvent
from thinwire.train.report import format_link
from thinwire.train.result_table import headings, rows
from thinwire.train.verdict import conclude, judge

__all__ = ["ComparisonProgress", "print_comparison"]

# Why a first step may take a minute: ranks compile, and have no line of their own to say so.
STARTING = "starting (kernels are compiled once on a machine)"


class ComparisonProgress(BarProgress):
    """A bar per recipe on a terminal; elsewhere a line per recipe."""

    def __init__(self) -> None:
        super().__init__(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
        )

    def begin_setting(self, link: Link | None, notice: str | None) -> None:
        """Say what the link is like."""
        if notice is not None:
            self._say(notice)
        if link is None:
            self._say("link: not shaped")
        else:
            self._say(
                f"link: requested {format_bit_rate(link.requested_bit_per_s)}, "
                f"measured {format_bit_rate(link.measured_bit_per_s)}"
            )

    def begin_run(self, recipe: str, steps: int) -> None:
        """Open a bar."""
        self._task = self._bars.add_task(recipe, total=steps, note=STARTING)

    def step(self, event: StepEvent) -> None:
        """Move the bar."""
        assert self._task is not None
        loss = "not finite" if event.loss is None else f"{event.loss:.3f}"
        note = f"loss {loss}, {format_duration(event.step_s)}"
        self._bars.update(self._task, completed=event.step + 1, note=note)

    def end_run(self, run: Run) -> None:
        """Leave the result in place of the bar's last note."""
        assert self._task is not None
        note = f"{format_duration(run.step_s.median)} a step"
        self._bars.update(self._task, note=note)
        if not self._console.is_terminal:
            self._say(f"{run.recipe}: {len(run.losses)} steps, {note}")

    def _say(self, text: str) -> None:
        self._bars.console.print(Text(text), soft_wrap=True)


def print_comparison(comparison: Comparison, *, page: Path | None) -> None:
    """Print the tables, then in words what they say.

    Args:
        comparison: what to print, to standard output.
        page: where the HTML page was written, to be named at the end.
    """
    console = result_console()
    console.print(
        Text(
            f"{comparison.model}: "
            f"{format_numbered(format_count(comparison.parameters), 'parameter')}, "
            f"{format_numbered(comparison.hosts, 'host')}, "
            f"{format_numbered(comparison.world, 'rank')}, "
            f"{format_numbered(comparison.steps, 'step')} of "
            f"{comparison.micro_batch} x {comparison.seq_len} bytes per rank; "
            f"text: {comparison.text}"
        ),
        soft_wrap=True,
    )
    for setting in comparison.settings:
        _print_setting(console, setting)
    console.print()
    for setting in comparison.settings:
        console.print(Text(conclude(setting)), soft_wrap=True)
    if page is not None:
        console.print(Text(f"page: {page}"), soft_wrap=True)


def _print_setting(console: Console, setting: Setting) -> None:
    console.print()
    # a column per recipe: four recipes fit into 80 characters, ten columns of figures do not
    table = Table(title=Text(format_link(setting)), title_justify="left", box=box.SIMPLE)
    names, *figures = zip(headings(setting.runs), *rows(setting.runs), strict=True)
    for index, name in enumerate(names):
        table.add_column(Text(name), justify="left" if index == 0 else "right", overflow="fold")
    for row in figures:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
    for verdict in judge(setting):
        console.print(Text(f"{verdict.recipe} {verdict.text}"), soft_wrap=True)
