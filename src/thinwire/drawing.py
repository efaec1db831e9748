"""Charts as inline SVG, drawn by matplotlib without a window system.

Text stays text, so that it can be searched, read aloud and copied, and takes the colour of the page
around it, light or dark. Importing this module loads matplotlib, which takes half a second.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

__all__ = ["COLOURS", "HATCHES", "INK", "LINE_STYLES", "Chart", "add_legend", "draw", "log_scales"]

# Okabe and Ito's palette without black, in an order that keeps neighbours apart in lightness
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442", "#8a8a8a")
LINE_STYLES = ("-", "--", "-.", ":")
HATCHES = ("", "///", "...", "xxx", "---", "\\\\\\", "+++", "ooo", "***")
INK = "#010203"  # stands for the page's own text colour until the SVG is written

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


def draw(
    title: str,
    key: str,
    plot: Callable[[Figure, Axes], str],
    *,
    size_in: tuple[float, float] = (4.8, 3.4),
) -> Chart:
    """Draw one chart.

    Args:
        title: what it shows.
        key: distinguishes its identifiers from those of other charts in the page.
        plot: draws on the axes and says in words what they show.
        size_in: width and height in inches; the default is about a phone's width at size drawn.
    """
    # without a salt the same values would not give the same identifiers
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": key}):
        figure = Figure(figsize=size_in, layout="constrained")
        axes = figure.subplots()
        axes.set_facecolor("none")
        figure.patch.set_alpha(0)
        axes.grid(color=INK, alpha=0.12, linewidth=0.6)
        axes.set_axisbelow(True)
        alt = plot(figure, axes)
        return Chart(title=title, alt=alt, svg=_to_svg(figure, key))


def log_scales(
    axes: Axes, write_x: Callable[[float], str], write_y: Callable[[float], str]
) -> None:
    """Logarithmic axes whose marks are written with their units."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis, write in ((axes.xaxis, write_x), (axes.yaxis, write_y)):
        axis.set_major_formatter(_written_by(write))
        axis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="x", labelrotation=30)


def add_legend(figure: Figure, entries: Sequence[tuple[Artist, str]], *, num_columns: int) -> None:
    """A legend above the axes, where it cannot hide anything."""
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


def _written_by(write: Callable[[float], str]) -> FuncFormatter:
    return FuncFormatter(lambda value, _: write(value))


def _to_svg(figure: Figure, key: str) -> str:
    """The figure as an SVG element that may stand beside others in one page."""
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
