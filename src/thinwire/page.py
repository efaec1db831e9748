"""One HTML page that needs nothing else: no script, no font, no picture beside it.

    page = Page("A plan")
    page.conclusion("zeropp takes 0.4 s a step.")
    page.section("Memory")
    page.table(("recipe", "total"), [("zeropp", "5 GB")])
    page.figures(charts)
    page.write(Path("plan.html"))

Everything that is said is escaped. The content policy forbids the browser to load anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Protocol

from thinwire.atomic_file import write_text_atomically
from thinwire.errors import InputError

__all__ = ["Figure", "Page"]

POLICY = "default-src 'none'; style-src 'unsafe-inline'"

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 76rem; padding: 1rem; }
h1 { font-size: 1.5rem; line-height: 1.2; }
h2 { font-size: 1.2rem; margin-top: 2.5rem; }
.conclusion { font-size: 1.1rem; border-left: .3rem solid #0072B2; padding-left: .8rem; }
.figures { display: grid; gap: 1.5rem; margin-top: 1.5rem;
  grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); }
figure { margin: 0; max-width: 46rem; }
figcaption { font-weight: 600; overflow-wrap: anywhere; }
svg { width: 100%; height: auto; display: block; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .5rem; text-align: right; border-bottom: 1px solid var(--line); }
td { white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead th { background: var(--soft); }
"""


class Figure(Protocol):
    """What a page can show: a chart as an SVG element, and what it says in words."""

    @property
    def title(self) -> str:
        """What it shows."""
        ...

    @property
    def alt(self) -> str:
        """What it says, for those who do not see it."""
        ...

    @property
    def svg(self) -> str:
        """An ``<svg>`` element; the only thing here that is not escaped."""
        ...


class Page:
    """A page, part by part.

    Args:
        title: of the page, and its first heading.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._parts: list[str] = []

    def conclusion(self, text: str) -> None:
        """A sentence that stands out."""
        self._parts.append(f'<p class="conclusion">{escape(text)}</p>')

    def paragraph(self, text: str) -> None:
        """A sentence or a few."""
        self._parts.append(f"<p>{escape(text)}</p>")

    def section(self, heading: str) -> None:
        """A heading; what follows belongs to it."""
        self._parts.append(f"<h2>{escape(heading)}</h2>")

    def table(self, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """A table whose first column names the rows."""
        header = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
        body = "".join(
            f'<tr><th scope="row">{escape(first)}</th>'
            + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
            + "</tr>\n"
            for first, *cells in rows
        )
        self._parts.append(
            f'<div class="scroll"><table>\n<thead><tr>{header}</tr></thead>\n'
            f"<tbody>\n{body}</tbody>\n</table></div>"
        )

    def figures(self, figures: Iterable[Figure]) -> None:
        """Charts beside each other, as many as the width allows."""
        drawn = "\n".join(
            f'<figure role="img" aria-label="{escape(f"{figure.title}: {figure.alt}")}">'
            f"<figcaption>{escape(figure.title)}</figcaption>{figure.svg}</figure>"
            for figure in figures
        )
        self._parts.append(f'<div class="figures">\n{drawn}\n</div>')

    def render(self) -> str:
        """The page as HTML."""
        parts = "\n".join(self._parts)
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>thinwire: {escape(self._title)}</title>\n<style>{STYLE}</style>\n"
            f"</head>\n<body>\n<main>\n<h1>{escape(self._title)}</h1>\n{parts}\n</main>\n"
            "</body>\n</html>\n"
        )

    def write(self, path: Path) -> None:
        """Write the page, whole or not at all.

        Raises:
            InputError: the file cannot be written.
        """
        try:
            write_text_atomically(path, self.render())
        except OSError as error:
            raise InputError(
                f"page {path}: cannot be written ({error.strerror}); give a file in a folder that "
                "is there and that you may write to"
            ) from error
