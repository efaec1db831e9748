"""A calibration for people: what is being measured, then the figures and how sure they are."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from rich import box
from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from thinwire.cli.console import result_console
from thinwire.train.calibration.calibration import Calibration

__all__ = ["CalibrationProgress", "explain_refusal", "print_calibration"]


class CalibrationProgress:
    """A line on a terminal that says what is measured; elsewhere a line for each."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._status: Status | None = None
        if self._console.is_terminal:
            self._status = self._console.status("starting ranks")

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def tell(self, text: str) -> None:
        """Say what comes next."""
        if self._status is not None:
            self._status.update(Text(text))
        else:
            self._console.print(Text(text), soft_wrap=True)


def print_calibration(calibration: Calibration, *, file: Path | None) -> None:
    """Print the figures and the residuals to standard output.

    Args:
        calibration: what to print.
        file: where the hardware file was written; ``None``: nowhere.
    """
    console = result_console()
    figures = Table(box=box.SIMPLE)
    figures.add_column("figure")
    figures.add_column("value", justify="right")
    figures.add_column("rounds apart", justify="right")
    for item in calibration.figures:
        figures.add_row(Text(item.name), f"{item.value:.4g}", f"{item.scatter:.0%}")
    console.print(figures)
    residuals = Table(box=box.SIMPLE)
    residuals.add_column("least squares")
    for heading in ("measurements", "median error", "largest error"):
        residuals.add_column(heading, justify="right")
    for residual in calibration.hardware.residuals:
        residuals.add_row(
            Text(residual.part),
            str(residual.rows),
            f"{residual.median:.1%}",
            f"{residual.largest:.1%}",
        )
    console.print(residuals)
    if file is not None:
        console.print(Text(f"hardware file: {file}"), soft_wrap=True)


def explain_refusal(calibration: Calibration) -> str:
    """Which figures scatter, and what to do about it."""
    worst = ", ".join(
        f"{figure.name} ({figure.scatter:.0%} apart)" for figure in calibration.unsteady[:3]
    )
    count = len(calibration.unsteady)
    more = f" and {count - 3} more" if count > 3 else ""
    return (
        f"thinwire: error: repeated measurements disagree by more than "
        f"{calibration.tolerance:.0%}: {worst}{more}; no file was written: end other programs on "
        "this machine and calibrate again, with --rounds 5 where some must run, or accept it with "
        "a larger --tolerance"
    )
