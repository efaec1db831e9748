"""Charts of a comparison as inline SVG, drawn by matplotlib without a window system.

The text stays text, so that it can be searched, read aloud and copied, and takes the colour of the
page around it, light or dark. A colour means a recipe, in every chart the same; line styles tell
recipes apart without it. Collectives are shades of grey with a hatch.
"""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from thinwire.quantities import format_bytes, format_duration
from thinwire.train.comparison import Run

__all__ = ["Chart", "draw_charts"]

# Okabe and Ito's palette without black, in an order that keeps neighbours apart in lightness
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7")
LINE_STYLES = ("-", "--", "-.", ":")
SHADES = ("#8a8a8a", "#c4c4c4", "#5a5a5a")
HATCHES = ("", "///", "...")
INK = "#010203"  # stands for the page's own text colour until the SVG is written
WIDTH_IN, HEIGHT_IN = 4.8, 3.4  # about a phone's width at the size drawn

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "text.parse_math": False,  # a recipe may be called $x$
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "hatch.color": INK,
    "hatch.linewidth": 0.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A drawn chart.

    Attributes:
        title: what it shows.
        alt: what it says, in words, for those who do not see it.
        svg: an ``<svg>`` element without width and height, so that it fills what holds it.
    """

    title: str
    alt: str
    svg: str


def draw_charts(runs: Sequence[Run], *, key: str) -> tuple[Chart, ...]:
    """All charts of one setting: loss by time, step time, bytes by collective, loss by step.

    Args:
        runs: at least one.
        key: distinguishes the identifiers in these charts from those of others in the same page.
    """
    draw = (_loss_by_time, _step_times, _bytes_by_collective, _loss_by_step)
    # without a salt the same runs would not give the same identifiers
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": key}):
        return tuple(chart(runs, f"{key}-{index}") for index, chart in enumerate(draw))


def _loss_by_step(runs: Sequence[Run], key: str) -> Chart:
    """Training loss against the step."""
    curves = [list(range(1, len(run.losses) + 1)) for run in runs]
    figure, alt = _plot_losses(runs, curves, label="steps", format_end="{:.0f} steps".format)
    return Chart(title="Training loss by step", alt=alt, svg=_to_svg(figure, key))


def _loss_by_time(runs: Sequence[Run], key: str) -> Chart:
    """Training loss against the time spent on steps."""
    curves = [list(itertools.accumulate(run.step_times_s)) for run in runs]
    figure, alt = _plot_losses(runs, curves, label="seconds", format_end=format_duration)
    return Chart(title="Training loss by time", alt=alt, svg=_to_svg(figure, key))


def _plot_losses(
    runs: Sequence[Run],
    positions: Sequence[Sequence[float]],
    *,
    label: str,
    format_end: Callable[[float], str],
) -> tuple[Figure, str]:
    """Loss curves over the given positions, and what they say in words."""
    figure, axes = _new_figure()
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
    axes.set_xlabel(label)
    axes.set_ylabel("loss (nats per byte)")
    _add_legend(figure, legend, num_columns=1)
    return figure, "; ".join(words) + "."


def _step_times(runs: Sequence[Run], key: str) -> Chart:
    """Median step time per recipe, with the least and the greatest."""
    figure, axes = _new_figure()
    rows = range(len(runs))
    medians = [run.step_s.median for run in runs]
    axes.barh(rows, medians, color=[_colour(index) for index in rows], height=0.6)
    below = [run.step_s.median - run.step_s.min for run in runs]
    above = [run.step_s.max - run.step_s.median for run in runs]
    axes.errorbar(
        medians, rows, xerr=[below, above], fmt="none", ecolor=INK, elinewidth=1, capsize=3
    )
    for row, run in enumerate(runs):
        _write_beside(axes, run.step_s.max, row, format_duration(run.step_s.median))
    _name_rows(axes, runs, longest=max(run.step_s.max for run in runs))
    axes.set_xlabel("seconds per step: median, least and greatest")
    words = [
        f"{run.recipe} {format_duration(run.step_s.median)} "
        f"(from {format_duration(run.step_s.min)} to {format_duration(run.step_s.max)})"
        for run in runs
    ]
    return Chart(title="Step time", alt="; ".join(words) + ".", svg=_to_svg(figure, key))


def _bytes_by_collective(runs: Sequence[Run], key: str) -> Chart:
    """Bytes sent per rank and step, stacked by collective."""
    figure, axes = _new_figure()
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
    _add_legend(figure, legend, num_columns=max(1, len(names)))
    words = [
        f"{run.recipe} sends {format_bytes(run.sent_bytes_per_rank)}"
        + "".join(
            f", {item.name.replace('_', '-')} {format_bytes(item.within_bytes + item.across_bytes)}"
            for item in run.collectives
        )
        for run in runs
    ]
    return Chart(title="Bytes by collective", alt="; ".join(words) + ".", svg=_to_svg(figure, key))


def _new_figure() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
    axes = figure.subplots()
    axes.set_facecolor("none")
    figure.patch.set_alpha(0)
    axes.grid(color=INK, alpha=0.12, linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


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


def _add_legend(figure: Figure, entries: Sequence[tuple[Artist, str]], *, num_columns: int) -> None:
    """A legend above the axes, where it cannot hide a curve."""
    if entries:
        artists, labels = zip(*entries, strict=True)
        figure.legend(
            artists,
            labels,
            loc="outside upper left",
            ncols=num_columns,
            frameon=False,
            fontsize=8.5,
            handlelength=3,
        )


def _to_svg(figure: Figure, key: str) -> str:
    """The figure as an SVG element that may stand beside others in one page.

    Args:
        figure: what to write.
        key: distinguishes the identifiers of this chart from those of others in the page.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'(<svg [^>]*?)\swidth="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg [^>]*?)\sheight="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{key}-', svg)
    svg = svg.replace("url(#", f"url(#{key}-").replace('href="#', f'href="#{key}-')
    return svg.replace(INK, "currentColor")
