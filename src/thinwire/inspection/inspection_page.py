"""An inspection as one HTML page: the verdict, the formats, the worst layers and their values."""

from __future__ import annotations

from pathlib import Path

from thinwire.inspection.distortion import HURT_ERROR
from thinwire.inspection.inspection_table import (
    FORMAT_HEADINGS,
    LAYER_HEADINGS,
    error_headings,
    error_rows,
    file_headings,
    file_rows,
    format_rows,
    layer_rows,
)
from thinwire.inspection.report import FileReport, Inspection
from thinwire.inspection.verdict import conclude, describe_rest
from thinwire.page import Page

__all__ = ["render_inspection_page", "write_inspection_page"]


def write_inspection_page(path: Path, inspection: Inspection) -> None:
    """Write the page, whole or not at all.

    Raises:
        InputError: the file cannot be written.
    """
    render_inspection_page(inspection).write(path)


def render_inspection_page(inspection: Inspection) -> Page:
    """The page; see :func:`write_inspection_page`."""
    first, *others = inspection.files
    names = first.label + (f" and {len(others)} more" if others else "")
    page = Page(f"{names}, format by format")
    if others:
        page.section("Files side by side: the median layer's error")
        page.table(
            file_headings(inspection.formats), file_rows(inspection.files, inspection.formats)
        )
    for index, file in enumerate(inspection.files):
        if others:
            page.section(file.label)
        _add_file(page, inspection, file, key=f"file{index}")
    page.section("What the words mean")
    for text in MEANINGS:
        page.paragraph(text)
    return page


MEANINGS = (
    "error: |y - x| / |x| in the 2-norm, x the layer and y what arrives; SNR is the same in "
    "decibels; median error is that of the median layer. bias: mean(y - x) in units of the layer's "
    "root mean square. zeros, after: the share of zeros in the layer, and in what arrives.",
    f"hurt: layers that lose more than {HURT_ERROR:.1%}, twice the noise power that int4/128 makes "
    "of normally distributed numbers; ! marks them.",
    "bits each: per element, scales included. Layers that travel exactly are not in any figure.",
)


def _add_file(page: Page, inspection: Inspection, file: FileReport, *, key: str) -> None:
    first, *others = conclude(file, inspection.formats, inspection.ranking)
    page.conclusion(first)
    for sentence in (*others, *describe_rest(file)):
        page.paragraph(sentence)
    if not file.measured:
        return
    from thinwire.inspection.inspection_charts import draw_errors, draw_histograms  # matplotlib

    page.table(FORMAT_HEADINGS, format_rows(file, inspection.formats))
    page.figures(draw_errors(file, inspection.formats, key=key))
    if file.histograms:
        page.section(f"Values of the worst layers, before and after {inspection.ranking}")
        page.figures(draw_histograms(file, key=key))
    count = len(file.measured)
    page.section("Relative error of every layer, worst first")
    page.table(
        error_headings(inspection.formats),
        error_rows(file, inspection.formats, inspection.ranking, count),
    )
    page.section(f"What {inspection.ranking} does to every layer")
    page.table(LAYER_HEADINGS, layer_rows(file, inspection.ranking, count))
