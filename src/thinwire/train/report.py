"""A comparison as one HTML page that needs nothing else: no script, no font, no picture beside it.

The page is the same for the same comparison, bit for bit. Its content policy forbids the browser
to load anything, so that what it shows is what was measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from thinwire.errors import InputError
from thinwire.quantities import format_bit_rate, format_count
from thinwire.train.atomic_file import check_writable, write_text_atomically
from thinwire.train.comparison import Comparison, Run, Setting
from thinwire.train.result_table import headings, rows
from thinwire.train.verdict import conclude, judge

__all__ = ["check_report_path", "format_link", "render_report", "write_report"]

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 76rem; padding: 1rem; }
h1 { font-size: 1.5rem; line-height: 1.2; }
h2 { font-size: 1.2rem; margin-top: 2.5rem; }
.conclusion { font-size: 1.1rem; border-left: .3rem solid #0072B2; padding-left: .8rem; }
.notice { border-left: .3rem solid #D55E00; padding-left: .8rem; }
.charts { display: grid; gap: 1.5rem; margin-top: 1.5rem;
  grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); }
figure { margin: 0; }
figcaption { font-weight: 600; }
svg { width: 100%; height: auto; display: block; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .5rem; text-align: right; border-bottom: 1px solid var(--line); }
td { white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead th { background: var(--soft); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; }
dt { font-weight: 600; } dd { margin: 0; overflow-wrap: anywhere; }
"""

POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def check_report_path(path: Path) -> None:
    """Refuse now a path that could not be written after the training; make its folder.

    Raises:
        InputError: the folder cannot be made or written to, or the path is a folder.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        check_writable(path)
    except OSError as error:
        raise InputError(
            f"report {path}: cannot be written ({error.strerror}); give a file in a folder that "
            "you may write to"
        ) from error


def write_report(path: Path, comparison: Comparison, machine: dict[str, str]) -> None:
    """Write the page, whole or not at all.

    Args:
        path: the file.
        comparison: what to show.
        machine: names and values that say what it was measured with.

    Raises:
        InputError: the file cannot be written.
    """
    page = render_report(comparison, machine)
    try:
        write_text_atomically(path, page)
    except OSError as error:
        raise InputError(f"report {path}: cannot be written ({error.strerror})") from error


def render_report(comparison: Comparison, machine: dict[str, str]) -> str:
    """The page as HTML; see :func:`write_report`."""
    title = f"{comparison.model} on {comparison.hosts} hosts, recipe by recipe"
    sections = [
        _render_setting(setting, key=f"setting{index}")
        for index, setting in enumerate(comparison.settings)
    ]
    conclusions = "".join(
        f'<p class="conclusion">{escape(conclude(setting))}</p>' for setting in comparison.settings
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>thinwire: {escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<main>\n<h1>{escape(title)}</h1>\n{conclusions}\n{''.join(sections)}"
        f"{_render_method(comparison, machine)}</main>\n</body>\n</html>\n"
    )


def _render_setting(setting: Setting, *, key: str) -> str:
    from thinwire.train import charts  # matplotlib takes half a second; only a page needs it

    figures = "".join(
        f'<figure role="img" aria-label="{escape(f"{chart.title}: {chart.alt}")}">'
        f"<figcaption>{escape(chart.title)}</figcaption>{chart.svg}</figure>\n"
        for chart in charts.draw_charts(setting.runs, key=key)
    )
    verdicts = "".join(
        f"<li><b>{escape(verdict.recipe)}</b> {escape(verdict.text)}</li>\n"
        for verdict in judge(setting)
    )
    notice = "" if setting.notice is None else f'<p class="notice">{escape(setting.notice)}</p>\n'
    return (
        f"<section>\n<h2>{escape(format_link(setting))}</h2>\n{notice}<ul>\n{verdicts}</ul>\n"
        f'<div class="scroll">{_render_table(setting.runs)}</div>\n'
        f'<div class="charts">\n{figures}</div>\n</section>\n'
    )


def format_link(setting: Setting) -> str:
    """A setting's network in words, for people."""
    if setting.link is None:
        return "Link not shaped"
    requested = format_bit_rate(setting.link.requested_bit_per_s)
    return f"Link of {requested}, measured {format_bit_rate(setting.link.measured_bit_per_s)}"


def _render_table(runs: Sequence[Run]) -> str:
    header = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings(runs))
    body = "".join(f"<tr>{_render_row(row)}</tr>\n" for row in rows(runs))
    return f"<table>\n<thead><tr>{header}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>"


def _render_row(cells: Sequence[str]) -> str:
    return f'<th scope="row">{escape(cells[0])}</th>' + "".join(
        f"<td>{escape(cell)}</td>" for cell in cells[1:]
    )


def _render_method(comparison: Comparison, machine: dict[str, str]) -> str:
    facts: Iterable[tuple[str, str]] = (
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
            f"without the first {comparison.main.runs[0].settling_steps}",
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
    pairs = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>\n" for name, value in facts)
    return f"<section>\n<h2>How it was measured</h2>\n<dl>\n{pairs}</dl>\n</section>\n"
