"""An estimate for people: one row a format."""

from __future__ import annotations

import math
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from thinwire.cli.console import result_console
from thinwire.planner.estimate import Estimate
from thinwire.planner.estimate_words import say_codec_source, say_conditions
from thinwire.quantities import format_bit_rate, format_bytes, format_duration

__all__ = ["print_estimate"]


def print_estimate(estimate: Estimate, *, page: Path | None) -> None:
    """Print the table, and how sure the codec's times are.

    Args:
        estimate: what to print.
        page: the page that was written, to name it.
    """
    console = result_console()
    console.print(Text(say_conditions(estimate)))
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
    console.print(Text(say_codec_source(estimate)))
    if page is not None:
        console.print(Text(f"page: {page}"))


def _pays(bit_per_s: float | None) -> str:
    if bit_per_s is None:
        return "-"
    return "any rate" if math.isinf(bit_per_s) else format_bit_rate(bit_per_s)
