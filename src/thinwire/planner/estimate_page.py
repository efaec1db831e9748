"""An estimate as one HTML page: time against bandwidth, and where each format starts to pay."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from thinwire.drawing import COLOURS, INK, LINE_STYLES, Chart, add_legend, draw, log_scales
from thinwire.page import Page
from thinwire.planner.cost import transfer_s
from thinwire.planner.estimate import Estimate
from thinwire.planner.estimate_words import say_codec_source, say_conditions
from thinwire.quantities import (
    format_bit_rate,
    format_bytes,
    format_count,
    format_duration,
    format_numbered,
)

__all__ = ["write_estimate_page"]

DECADES_DOWN, DECADES_UP, POINTS_A_DECADE = 1, 4, 8


def write_estimate_page(path: Path, estimate: Estimate) -> None:
    """Write the page, whole or not at all.

    Raises:
        InputError: the file cannot be written.
    """
    parameters = format_numbered(format_count(estimate.parameters), "parameter")
    page = Page(f"{parameters} over one link, format by format")
    fastest = min(estimate.rows, key=lambda row: row.total_s)
    page.conclusion(
        f"{fastest.format} is the fastest over {format_bit_rate(estimate.link.bit_per_s)}: "
        f"{format_duration(fastest.total_s)}."
    )
    page.paragraph(f"{say_conditions(estimate)}.")
    page.paragraph(say_codec_source(estimate))
    page.figures([_time_by_bandwidth(estimate)])
    page.table(
        ("format", "payload", "transfer", "codec", "total", "beats fp32 below"),
        (
            (
                str(row.format),
                format_bytes(row.payload_bytes),
                format_duration(row.transfer_s),
                format_duration(row.codec_s),
                format_duration(row.total_s),
                "-"
                if row.pays_below_bit_per_s is None
                else "any rate"
                if math.isinf(row.pays_below_bit_per_s)
                else format_bit_rate(row.pays_below_bit_per_s),
            )
            for row in estimate.rows
        ),
    )
    page.write(path)


def _time_by_bandwidth(estimate: Estimate) -> Chart:
    def plot(figure: Figure, axes: Axes) -> str:
        own = estimate.link.bit_per_s
        count = POINTS_A_DECADE * (DECADES_DOWN + DECADES_UP) + 1
        first = own / 10**DECADES_DOWN
        rates = [first * 10 ** (index / POINTS_A_DECADE) for index in range(count)]
        legend: list[tuple[Artist, str]] = []
        for index, row in enumerate(estimate.rows):
            times = [_total_s(estimate, row.payload_bytes, row.codec_s, rate) for rate in rates]
            (line,) = axes.plot(
                rates,
                times,
                color=COLOURS[index % len(COLOURS)],
                linestyle=LINE_STYLES[index // len(COLOURS) % len(LINE_STYLES)],
                linewidth=1.4,
            )
            legend.append((line, str(row.format)))
            rate = row.pays_below_bit_per_s
            if rate is not None and first <= rate <= rates[-1]:
                total_s = _total_s(estimate, row.payload_bytes, row.codec_s, rate)
                axes.plot([rate], [total_s], "o", markersize=4, color=INK, fillstyle="none")
        axes.axvline(own, color=INK, linewidth=1, linestyle="--")
        log_scales(axes, format_bit_rate, format_duration)
        axes.set_xlabel("rate of the link; dashed: this one; circles: as fast as fp32")
        axes.set_ylabel("time, codec included")
        add_legend(figure, legend, num_columns=4)
        words = (f"{row.format} {format_duration(row.total_s)}" for row in estimate.rows)
        return f"at {format_bit_rate(own)} " + ", ".join(words) + "."

    return draw("Time by bandwidth", "bandwidth", plot, size_in=(6.4, 4.2))


def _total_s(estimate: Estimate, payload_bytes: int, codec_s: float, bit_per_s: float) -> float:
    link = dataclasses.replace(estimate.link, bit_per_s=bit_per_s)
    return transfer_s(link, payload_bytes) + codec_s
