"""An inspection for people: progress on standard error while it runs, then tables and a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn
from rich.table import Table
from rich.text import Text

from thinwire.cli.console import BarProgress, result_console
from thinwire.formats import WireFormat
from thinwire.inspection.inspection_table import (
    FORMAT_HEADINGS,
    LAYER_HEADINGS,
    error_headings,
    error_rows,
    file_headings,
    file_rows,
    format_rows,
    layer_rows,
)
from thinwire.inspection.report import FileReport, Inspection
from thinwire.inspection.verdict import conclude, describe_rest, format_layers
from thinwire.quantities import format_bytes, format_count

__all__ = ["InspectionProgress", "print_inspection"]


class InspectionProgress(BarProgress):
    """A bar per file on a terminal; elsewhere a line per file."""

    def __init__(self) -> None:
        super().__init__(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            transient=True,
        )

    def begin_file(self, label: str, elements: int) -> None:
        """Open a bar."""
        self._task = self._bars.add_task(_shown(label), total=elements)
        if not self._console.is_terminal:
            self._console.print(
                Text(f"{_shown(label)}: {format_count(elements)} elements"), soft_wrap=True
            )

    def advance(self, elements: int) -> None:
        """Move the bar."""
        assert self._task is not None
        self._bars.advance(self._task, elements)

    def end_file(self) -> None:
        """Close the bar."""
        assert self._task is not None
        self._bars.remove_task(self._task)


def print_inspection(inspection: Inspection, *, top: int, page: Path | None) -> None:
    """Print the tables of every file, and below them in words what they say.

    Args:
        inspection: what to print, to standard output.
        top: how many of the worst layers to print.
        page: where the HTML page was written, to be named at the end.
    """
    console = result_console()
    for file in inspection.files:
        _print_file(console, file, inspection.formats, inspection.ranking, top)
        console.print()
    if len(inspection.files) > 1:
        _say(console, "Files side by side: the median layer's error")
        rows = file_rows(inspection.files, inspection.formats)
        console.print(_table(file_headings(inspection.formats), rows))
    if page is not None:
        console.print(Text(f"page: {page}"), soft_wrap=True)


def _print_file(
    console: Console,
    file: FileReport,
    formats: Sequence[WireFormat],
    ranking: WireFormat,
    top: int,
) -> None:
    stored_bytes = sum(layer.tensor.stored_bytes for layer in file.layers)
    numel = sum(layer.tensor.numel for layer in file.layers)
    _say(
        console,
        f"{file.label}: {format_layers(len(file.layers))}, {format_count(numel)} elements, "
        f"{format_bytes(stored_bytes)}",
    )
    if file.measured:
        console.print(_table(FORMAT_HEADINGS, format_rows(file, formats)))
        if top:
            _say(console, "Worst layers, relative error by format")
            console.print(_table(error_headings(formats), error_rows(file, formats, ranking, top)))
            _say(console, f"The same under {ranking}")
            console.print(_table(LAYER_HEADINGS, layer_rows(file, ranking, top)))
    for sentence in (*describe_rest(file), *conclude(file, formats, ranking)):
        _say(console, sentence)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for index, heading in enumerate(headings):
        table.add_column(Text(heading), justify="left" if index == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_shown(cell)) for cell in row))
    return table


def _say(console: Console, text: str) -> None:
    console.print(Text(_shown(text)), soft_wrap=True)


def _shown(text: str) -> str:
    """A text from a file without what would steer a terminal."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
