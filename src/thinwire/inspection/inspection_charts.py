"""Pictures of an inspection: error by layer, formats by size, values before and after.

Importing this module loads matplotlib.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from thinwire.drawing import COLOURS, INK, Chart, add_legend, draw
from thinwire.formats import WireFormat
from thinwire.inspection.distortion import HURT_ERROR
from thinwire.inspection.histogram import Histogram
from thinwire.inspection.report import FileReport
from thinwire.quantities import format_count

__all__ = ["draw_errors", "draw_histograms"]

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
GREY = "#8a8a8a"
ERROR_SIZE_IN = (4.8, 4.0)


def draw_errors(file: FileReport, formats: Sequence[WireFormat], *, key: str) -> tuple[Chart, ...]:
    """What formats cost and lose, over all layers and layer by layer.

    Args:
        file: at least one of its layers was measured.
        formats: what they were sent in.
        key: distinguishes the identifiers in these charts from those of others in the same page.
    """
    return (
        draw(
            "Error by layer",
            f"{key}-layers",
            functools.partial(_plot_layers, file, formats),
            size_in=ERROR_SIZE_IN,
        ),
        draw(
            "Error by bits",
            f"{key}-bits",
            functools.partial(_plot_bits, file, formats),
            size_in=ERROR_SIZE_IN,
        ),
    )


def draw_histograms(file: FileReport, *, key: str) -> tuple[Chart, ...]:
    """The values of the worst layers, before and after."""
    return tuple(
        draw(
            histogram.layer,
            f"{key}-histogram-{index}",
            functools.partial(_plot_histogram, histogram),
            size_in=(4.8, 2.6),
        )
        for index, histogram in enumerate(file.histograms)
    )


def _plot_layers(
    file: FileReport, formats: Sequence[WireFormat], figure: Figure, axes: Axes
) -> str:
    """A mark for every layer and format, in the file's order."""
    legend: list[tuple[Artist, str]] = []
    for index, fmt in enumerate(formats):
        errors = [layer.under(fmt).relative_error for layer in file.measured]
        # a logarithmic axis has no place for an error of zero
        points = [(place, error) for place, error in enumerate(errors, start=1) if error]
        if points:
            (marks,) = axes.plot(
                *zip(*points, strict=True),
                color=COLOURS[index % len(COLOURS)],
                marker=MARKERS[index % len(MARKERS)],
                markersize=4,
                linewidth=0.6,
            )
            legend.append((marks, str(fmt)))
    _error_axis(axes)
    axes.set_xlabel("layer, in the file's order; dashed: above it a format hurts")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    add_legend(figure, legend, num_columns=2)
    worst = (file.ranked(fmt)[0] for fmt in formats)
    words = (
        f"{fmt} at worst {layer.under(fmt).relative_error:.1%} in {layer.name}"
        for fmt, layer in zip(formats, worst, strict=True)
    )
    return "; ".join(words) + "."


def _plot_bits(file: FileReport, formats: Sequence[WireFormat], figure: Figure, axes: Axes) -> str:
    """A format is a mark at its size and its median error; a bar spans the layers."""
    words = []
    legend: list[tuple[Artist, str]] = []
    for index, fmt in enumerate(formats):
        total = file.total(fmt)
        errors = [layer.under(fmt).relative_error for layer in file.measured]
        words.append(f"{fmt} {total.bits_per_element:.2f} bits, {total.median_error:.1%}")
        if not min(errors):
            continue  # as above
        colour = COLOURS[index % len(COLOURS)]
        bits = total.bits_per_element
        axes.plot([bits, bits], [min(errors), max(errors)], color=colour, linewidth=1.2)
        (mark,) = axes.plot(
            [bits],
            [total.median_error],
            color=colour,
            marker=MARKERS[index % len(MARKERS)],
            markersize=6,
            linestyle="",
        )
        legend.append((mark, str(fmt)))
    _error_axis(axes)
    axes.margins(x=0.1)
    axes.set_xlabel("bits per element; mark: the median layer, bar: all layers")
    add_legend(figure, legend, num_columns=2)
    return "; ".join(words) + "."


def _error_axis(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.axhline(HURT_ERROR, color=INK, linewidth=1, linestyle="--")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g} %"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("relative error")


def _plot_histogram(histogram: Histogram, figure: Figure, axes: Axes) -> str:
    """Counts before as an area, after as a line."""
    centres = histogram.centres
    area = axes.fill_between(centres, histogram.before, step="mid", color=GREY, alpha=0.5)
    (line,) = axes.plot(
        centres, histogram.after, drawstyle="steps-mid", color=COLOURS[0], linewidth=1
    )
    axes.set_yscale("symlog", linthresh=1)  # bins may be empty
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_count(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(f"value, in units of the layer's rms ({histogram.rms:.3g})")
    axes.set_ylabel("elements")
    add_legend(figure, [(area, "before"), (line, str(histogram.format))], num_columns=2)
    used = sum(1 for count in histogram.after if count)
    of = sum(1 for count in histogram.before if count)
    return f"values fill {of} of {len(centres)} bins before and {used} after {histogram.format}."
