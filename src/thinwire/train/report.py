"""A comparison as one HTML page that needs nothing else: no script, no font, no picture beside it.

The page is the same for the same comparison, bit for bit. Its content policy forbids the browser
to load anything, so that what it shows is what was measured.
"""

from __future__ import annotations

from pathlib import Path

from thinwire.page import Page
from thinwire.quantities import format_bit_rate, format_count
from thinwire.train.comparison import Comparison, Setting
from thinwire.train.result_table import headings, rows
from thinwire.train.verdict import conclude, judge

__all__ = ["format_link", "render_report", "write_report"]


def write_report(path: Path, comparison: Comparison, machine: dict[str, str]) -> None:
    """Write the page, whole or not at all.

    Args:
        path: the file.
        comparison: what to show.
        machine: names and values that say what it was measured with.

    Raises:
        InputError: the file cannot be written.
    """
    render_report(comparison, machine).write(path)


def render_report(comparison: Comparison, machine: dict[str, str]) -> Page:
    """The page; see :func:`write_report`."""
    page = Page(f"{comparison.model} on {comparison.hosts} hosts, recipe by recipe")
    for setting in comparison.settings:
        page.conclusion(conclude(setting))
    for index, setting in enumerate(comparison.settings):
        _add_setting(page, setting, key=f"setting{index}")
    _add_method(page, comparison, machine)
    return page


def _add_setting(page: Page, setting: Setting, *, key: str) -> None:
    from thinwire.train.charts import draw_charts  # loads matplotlib

    page.section(format_link(setting))
    if setting.notice is not None:
        page.paragraph(setting.notice)
    for verdict in judge(setting):
        page.paragraph(f"{verdict.recipe} {verdict.text}")
    page.table(headings(setting.runs), rows(setting.runs))
    page.figures(draw_charts(setting.runs, key=key))


def format_link(setting: Setting) -> str:
    """A setting's network in words, for people."""
    if setting.link is None:
        return "Link not shaped"
    requested = format_bit_rate(setting.link.requested_bit_per_s)
    return f"Link of {requested}, measured {format_bit_rate(setting.link.measured_bit_per_s)}"


def _add_method(page: Page, comparison: Comparison, machine: dict[str, str]) -> None:
    page.section("How it was measured")
    facts = (
        ("model", f"{comparison.model}, {format_count(comparison.parameters)} parameters"),
        ("text", f"{comparison.text}; the last 5 % are held out"),
        (
            "training",
            f"{comparison.steps} steps of {comparison.micro_batch} x {comparison.seq_len} bytes "
            f"per rank, AdamW, seed {comparison.seed}; the same weights and data order for all",
        ),
        (
            "ranks",
            f"{comparison.world} processes on {comparison.hosts} hosts, which are network "
            "namespaces of one machine where it permits; fresh processes for every recipe",
        ),
        (
            "times",
            "from the end of one step to the end of the next, on rank 0, "
            f"without {_left_out(comparison)}",
        ),
        (
            "bytes",
            "per rank and step, the mean over ranks: payloads by the ledger; by the interface "
            "with all headers",
        ),
        ("losses", "nats per byte; of training, the mean of the last tenth of the steps"),
        ("peak memory", "largest resident set of any rank, with Python and all libraries"),
        *machine.items(),
    )
    for name, value in facts:
        page.paragraph(f"{name}: {value}")


def _left_out(comparison: Comparison) -> str:
    """The steps that times and bytes are not of."""
    numbers = {run.settling_steps for setting in comparison.settings for run in setting.runs}
    if len(numbers) == 1:
        return f"the first {numbers.pop()}"
    return (
        f"the first {min(numbers)}; with local steps without up to {max(numbers)}, so that the "
        "others are whole rounds, whose means are shown"
    )
