"""Where words for people go: results to standard output, bars to standard error."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import Progress, ProgressColumn, TaskID

__all__ = ["BarProgress", "result_console"]


def result_console(unattended_width: int = 120) -> Console:
    """Standard output, as wide as the terminal.

    Args:
        unattended_width: characters of a table that goes to a file or a pipe, which have no width.
    """
    width = None if sys.stdout.isatty() else unattended_width
    return Console(file=sys.stdout, highlight=False, width=width)


class BarProgress:
    """Bars on a terminal while the ``with`` block lasts; elsewhere subclasses print lines.

    Args:
        columns: of a bar.
        transient: whether bars vanish at the end.
    """

    def __init__(self, *columns: ProgressColumn, transient: bool = False) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._bars = Progress(
            *columns,
            console=self._console,
            disable=not self._console.is_terminal,
            transient=transient,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bars.stop()
