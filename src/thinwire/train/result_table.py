"""The figures of a setting as rows of text: the same on a terminal and in a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from thinwire.quantities import format_bytes, format_duration
from thinwire.train.comparison import Run

__all__ = ["headings", "rows"]

NOT_KNOWN = "-"


def headings(runs: Sequence[Run]) -> tuple[str, ...]:
    """The column's names; the first column names the recipe."""
    return tuple(_columns(runs))


def rows(runs: Sequence[Run]) -> tuple[tuple[str, ...], ...]:
    """One row of cells per run, in the order of :func:`headings`."""
    columns = _columns(runs).values()
    return tuple(tuple(column(run) for column in columns) for run in runs)


def _columns(runs: Sequence[Run]) -> Mapping[str, Callable[[Run], str]]:
    planned: dict[str, Callable[[Run], str]] = {
        "planned": lambda run: _or_not_known(run.predicted_step_s, format_duration)
    }
    return {
        "recipe": lambda run: run.recipe,
        "step": lambda run: format_duration(run.step_s.median),
        "step, min": lambda run: format_duration(run.step_s.min),
        "step, max": lambda run: format_duration(run.step_s.max),
        **(planned if any(run.predicted_step_s is not None for run in runs) else {}),
        "sent per rank": lambda run: format_bytes(run.sent_bytes_per_rank),
        "across hosts": lambda run: format_bytes(run.across_bytes_per_rank),
        "by interface": lambda run: _or_not_known(run.nic_bytes_per_rank, format_bytes),
        "bits / parameter": lambda run: f"{run.bits_per_parameter:.2f}",
        "train loss": lambda run: _format_loss(run.train_loss),
        "held-out loss": lambda run: _format_loss(run.validation_loss),
        "peak memory": lambda run: format_bytes(run.peak_bytes),
    }


def _or_not_known(value: float | None, write: Callable[[float], str]) -> str:
    return NOT_KNOWN if value is None else write(value)


def _format_loss(loss: float | None) -> str:
    return "not finite" if loss is None else f"{loss:.4f}"
