"""The tables of an inspection, cell by cell, for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from thinwire.formats import WireFormat
from thinwire.inspection.distortion import snr_db
from thinwire.inspection.report import FileReport
from thinwire.quantities import format_bytes

__all__ = [
    "FORMAT_HEADINGS",
    "LAYER_HEADINGS",
    "error_headings",
    "error_rows",
    "file_headings",
    "file_rows",
    "format_rows",
    "layer_rows",
]

FORMAT_HEADINGS = (
    "format",
    "bytes",
    "bits each",
    "error",
    "median error",
    "SNR",
    "zeros, after",
    "largest bias",
    "hurt",
)
LAYER_HEADINGS = (
    "layer",
    "shape",
    "bytes",
    "bits each",
    "error",
    "SNR",
    "zeros, after",
    "bias",
)


def format_rows(file: FileReport, formats: Sequence[WireFormat]) -> Iterator[tuple[str, ...]]:
    """A row a format, over all measured layers."""
    for fmt in formats:
        total = file.total(fmt)
        yield (
            str(fmt),
            format_bytes(total.wire_bytes),
            f"{total.bits_per_element:.2f}",
            f"{total.relative_error:.2%}",
            f"{total.median_error:.2%}",
            _decibels(total.relative_error),
            f"{total.zeros_before:.1%}, {total.zeros_after:.1%}",
            f"{total.largest_bias:+.3%}",
            str(len(total.hurt)),
        )


def file_headings(formats: Sequence[WireFormat]) -> tuple[str, ...]:
    """The file and each format's relative error."""
    return ("file", "layers", *map(str, formats))


def file_rows(
    files: Sequence[FileReport], formats: Sequence[WireFormat]
) -> Iterator[tuple[str, ...]]:
    """A row a file: the median layer's error, and how many layers are hurt."""
    for file in files:
        totals = [file.total(fmt) for fmt in formats] if file.measured else []
        errors = [
            f"{total.median_error:.2%}" + (f", {len(total.hurt)} hurt" if total.hurt else "")
            for total in totals
        ]
        yield (file.label, str(len(file.measured)), *(errors or ["-"] * len(formats)))


def error_headings(formats: Sequence[WireFormat]) -> tuple[str, ...]:
    """The layer and each format's relative error."""
    return ("layer", *map(str, formats))


def error_rows(
    file: FileReport, formats: Sequence[WireFormat], ranking: WireFormat, count: int
) -> Iterator[tuple[str, ...]]:
    """A row a layer, worst first; what hurts bears a mark."""
    for layer in file.ranked(ranking)[:count]:
        items = [layer.under(fmt) for fmt in formats]
        yield (layer.name, *(f"{i.relative_error:.2%}{' !' * i.hurts}" for i in items))


def layer_rows(file: FileReport, ranking: WireFormat, count: int) -> Iterator[tuple[str, ...]]:
    """A row a layer, worst first: all that one format does to it."""
    for layer in file.ranked(ranking)[:count]:
        item = layer.under(ranking)
        yield (
            layer.name,
            "x".join(map(str, layer.tensor.shape)),
            format_bytes(item.wire_bytes),
            f"{item.bits_per_element:.2f}",
            f"{item.relative_error:.2%}",
            _decibels(item.relative_error),
            f"{layer.profile.zeros:.1%}, {item.zeros:.1%}",
            f"{item.mean_bias:+.3%}",
        )


def _decibels(relative_error: float) -> str:
    ratio = snr_db(relative_error)
    return "lossless" if ratio is None else f"{ratio:.1f} dB"
