"""An estimate for people: one row a format."""

from __future__ import annotations

import math
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from thinwire.cli.console import result_console
from thinwire.planner.estimate import Estimate
from thinwire.planner.source import kind_of
from thinwire.quantities import format_bit_rate, format_bytes, format_count, format_duration

__all__ = ["print_estimate"]


def print_estimate(estimate: Estimate, *, page: Path | None) -> None:
    """Print the table, and how sure the codec's times are.

    Args:
        estimate: what to print.
        page: the page that was written, to name it.
    """
    console = result_console()
    link = estimate.link
    headline = f"{format_count(estimate.parameters)} parameters over "
    headline += f"{format_bit_rate(link.bit_per_s)}, {format_duration(link.latency_s)} one way"
    if link.loss:
        headline += f", {link.loss:.3%} of packets lost"
    console.print(Text(f"{headline}, {link.protocol}"))
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("format")
    for heading in ("payload", "transfer", "codec", "total", "beats fp32 below"):
        table.add_column(heading, justify="right")
    for row in estimate.rows:
        table.add_row(
            str(row.format),
            format_bytes(row.payload_bytes),
            format_duration(row.transfer_s),
            format_duration(row.codec_s) if row.codec_s else "-",
            format_duration(row.total_s),
            _pays(row.pays_below_bit_per_s),
        )
    console.print(table)
    source = kind_of(estimate.device.sources["codec"])
    console.print(Text(f"Codec times: {estimate.device.name}, {source}."))
    if page is not None:
        console.print(Text(f"page: {page}"))


def _pays(bit_per_s: float | None) -> str:
    if bit_per_s is None:
        return "-"
    return "any rate" if math.isinf(bit_per_s) else format_bit_rate(bit_per_s)
