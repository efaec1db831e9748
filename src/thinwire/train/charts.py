"""Charts of a comparison: losses, step times, bytes.

A colour means a recipe, in every chart the same; line styles tell recipes apart without it.
Collectives are shades of grey with a hatch. Importing this module loads matplotlib.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from thinwire.drawing import COLOURS, HATCHES, INK, LINE_STYLES, Chart, add_legend, draw
from thinwire.quantities import format_bytes, format_duration
from thinwire.train.comparison import Run

__all__ = ["SHADES", "draw_charts"]

SHADES = ("#8a8a8a", "#c4c4c4", "#5a5a5a")


def draw_charts(runs: Sequence[Run], *, key: str) -> tuple[Chart, ...]:
    """All charts of one setting.

    Args:
        runs: at least one.
        key: distinguishes the identifiers in these charts from those of others in the same page.
    """
    plots = {
        "Training loss by time": _plot_loss_by_time,
        "Step time": _plot_step_times,
        "Bytes by collective": _plot_bytes,
        "Training loss by step": _plot_loss_by_step,
    }
    return tuple(
        draw(title, f"{key}-{index}", functools.partial(plot, runs))
        for index, (title, plot) in enumerate(plots.items())
    )


def _plot_loss_by_step(runs: Sequence[Run], figure: Figure, axes: Axes) -> str:
    """Training loss against the step."""
    axes.set_xlabel("steps")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    curves = [list(range(1, len(run.losses) + 1)) for run in runs]
    return _plot_losses(runs, figure, axes, curves, "{:.0f} steps".format)


def _plot_loss_by_time(runs: Sequence[Run], figure: Figure, axes: Axes) -> str:
    """Training loss against the time spent on steps."""
    axes.set_xlabel("seconds")
    curves = [list(itertools.accumulate(run.step_times_s)) for run in runs]
    return _plot_losses(runs, figure, axes, curves, format_duration)


def _plot_losses(
    runs: Sequence[Run],
    figure: Figure,
    axes: Axes,
    positions: Sequence[Sequence[float]],
    format_end: Callable[[float], str],
) -> str:
    """A loss curve per run over the given positions, and what they say in words."""
    words: list[str] = []
    legend: list[tuple[Artist, str]] = []
    for index, (run, where) in enumerate(zip(runs, positions, strict=True)):
        points = [(x, y) for x, y in zip(where, run.losses, strict=True) if y is not None]
        if not points:
            words.append(f"{run.recipe} never has a finite loss")
            continue
        (_, first_loss), (end, last_loss) = points[0], points[-1]
        (curve,) = axes.plot(
            *zip(*points, strict=True),
            color=_colour(index),
            linestyle=LINE_STYLES[index % len(LINE_STYLES)],
            linewidth=1.6,
            marker="o",
            markersize=4,
            markevery=[-1],
        )
        legend.append((curve, f"{run.recipe}: {last_loss:.3f} after {format_end(end)}"))
        words.append(
            f"{run.recipe} goes from {first_loss:.3f} to {last_loss:.3f} in {format_end(end)}"
        )
    axes.set_ylabel("loss (nats per byte)")
    add_legend(figure, legend, num_columns=1)
    return "; ".join(words) + "."


def _plot_step_times(runs: Sequence[Run], figure: Figure, axes: Axes) -> str:
    """Median step time per recipe, with the least and the greatest."""
    del figure  # the bars are named at the axes
    rows = range(len(runs))
    medians = [run.step_s.median for run in runs]
    axes.barh(rows, medians, color=[_colour(index) for index in rows], height=0.6)
    below = [run.step_s.median - run.step_s.min for run in runs]
    above = [run.step_s.max - run.step_s.median for run in runs]
    axes.errorbar(
        medians, rows, xerr=[below, above], fmt="none", ecolor=INK, elinewidth=1, capsize=3
    )
    planned = {row: run.predicted_step_s for row, run in enumerate(runs)}
    for row, run in enumerate(runs):
        end = max(run.step_s.max, planned[row] or 0.0)
        _write_beside(axes, end, row, format_duration(run.step_s.median))
    _mark_planned(axes, planned)
    ends = [run.step_s.max for run in runs] + [time for time in planned.values() if time]
    _name_rows(axes, runs, longest=max(ends))
    is_planned = any(time is not None for time in planned.values())
    axes.set_xlabel(
        "seconds per step: median, least and greatest" + ("; diamond: planned" * is_planned)
    )
    return "; ".join(_step_words(run) for run in runs) + "."


def _mark_planned(axes: Axes, planned: Mapping[int, float | None]) -> None:
    """A diamond where the plan expects the end of a bar."""
    known = {row: time for row, time in planned.items() if time is not None}
    if known:
        axes.plot(
            list(known.values()), list(known), "D", markersize=5, color="white", markeredgecolor=INK
        )


def _step_words(run: Run) -> str:
    text = (
        f"{run.recipe} {format_duration(run.step_s.median)} "
        f"(from {format_duration(run.step_s.min)} to {format_duration(run.step_s.max)}"
    )
    if run.predicted_step_s is not None:
        text += f", planned {format_duration(run.predicted_step_s)}"
    return f"{text})"


def _plot_bytes(runs: Sequence[Run], figure: Figure, axes: Axes) -> str:
    """Bytes sent per rank and step, stacked by collective."""
    names = sorted({item.name for run in runs for item in run.collectives})
    left = [0.0] * len(runs)
    legend: list[tuple[Artist, str]] = []
    for index, name in enumerate(names):
        sent = [
            sum(i.within_bytes + i.across_bytes for i in run.collectives if i.name == name) / 1e6
            for run in runs
        ]
        bars = axes.barh(
            range(len(runs)),
            sent,
            left=left,
            height=0.6,
            color=SHADES[index % len(SHADES)],
            hatch=HATCHES[index % len(HATCHES)],
        )
        legend.append((bars.patches[0], name.replace("_", "-")))
        left = [start + more for start, more in zip(left, sent, strict=True)]
    for row, run in enumerate(runs):
        _write_beside(axes, left[row], row, format_bytes(run.sent_bytes_per_rank))
    _name_rows(axes, runs, longest=max(left))
    axes.set_xlabel("MB sent per rank and step")
    add_legend(figure, legend, num_columns=max(1, len(names)))
    words = [
        f"{run.recipe} sends {format_bytes(run.sent_bytes_per_rank)}"
        + "".join(
            f", {item.name.replace('_', '-')} {format_bytes(item.within_bytes + item.across_bytes)}"
            for item in run.collectives
        )
        for run in runs
    ]
    return "; ".join(words) + "."


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def _name_rows(axes: Axes, runs: Sequence[Run], *, longest: float) -> None:
    """Name the bars, the first on top, and leave room for the figures beside them."""
    axes.set_yticks(range(len(runs)), [run.recipe.replace(":", ":\n") for run in runs])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlim(0, longest * 1.28 if longest > 0 else 1)


def _write_beside(axes: Axes, x: float, row: int, text: str) -> None:
    axes.annotate(text, (x, row), xytext=(5, 0), textcoords="offset points", va="center")
