"""In words: which layers a format hurts, and what was not measured.

A format *hurts* a layer that loses more than `HURT_ERROR` of its norm. The bound is one number for
all formats and files, so that verdicts can be compared: twice the noise power that int4/128 makes
of normally distributed numbers. A layer beyond it has outliers that set the scale of their blocks,
or the format is too narrow for any layer; what the median layer loses tells which.
"""

from __future__ import annotations

from collections.abc import Sequence

from thinwire.formats import WireFormat
from thinwire.inspection.report import FileReport
from thinwire.inspection.request import is_four_bit
from thinwire.quantities import format_bytes

__all__ = ["conclude", "describe_rest", "format_layers", "name_some"]

NAMED_LAYERS = 4  # a longer list of names is not read in a sentence


def conclude(
    file: FileReport, formats: Sequence[WireFormat], ranking: WireFormat
) -> tuple[str, ...]:
    """A sentence for each format of 4 bits, and for the one that ranks the layers, which is first.

    Args:
        file: the file.
        formats: what its layers were sent in.
        ranking: one of them.
    """
    if not file.measured:
        return ("No layer was measured.",)
    judged = (ranking, *(fmt for fmt in formats if is_four_bit(fmt) and fmt != ranking))
    return tuple(_judge(file, fmt) for fmt in judged)


def _judge(file: FileReport, fmt: WireFormat) -> str:
    total, ranked = file.total(fmt), file.ranked(fmt)
    losses = [f"{layer.name} {layer.under(fmt).relative_error:.1%}" for layer in ranked]
    count = len(total.hurt)
    if 0 < count < len(ranked):
        told = f"{count} of {format_layers(len(ranked))}: {name_some(losses[:count])}"
    else:
        share = "all" if count else "none"
        worst = ", ".join(losses[:NAMED_LAYERS])
        told = f"{share} of {format_layers(len(ranked))}; those that lose most: {worst}"
    return f"{fmt} hurts {told}; the median layer loses {total.median_error:.1%}."


def describe_rest(file: FileReport) -> tuple[str, ...]:
    """What was not measured, and why: a sentence a reason; NaN and Inf first."""
    sentences = []
    if file.nonfinite:
        names = [f"{layer.name} ({layer.profile.num_nonfinite})" for layer in file.nonfinite]
        sentences.append(f"NaN or Inf, which would spread over whole blocks: {name_some(names)}.")
    if file.exact:
        names = [layer.name for layer in file.exact]
        exact_bytes = sum(layer.tensor.stored_bytes for layer in file.exact)
        sentences.append(
            f"Exact on the wire, and not measured, {format_bytes(exact_bytes)}: {name_some(names)}."
        )
    reasons = dict.fromkeys(tensor.obstacle for tensor in file.left_out)
    for reason in reasons:
        names = [tensor.name for tensor in file.left_out if tensor.obstacle == reason]
        sentences.append(f"Left out, {reason}: {name_some(names)}.")
    return tuple(sentences)


def name_some(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - NAMED_LAYERS
    return ", ".join(names[:NAMED_LAYERS]) + (f" and {more} more" if more > 0 else "")


def format_layers(count: int) -> str:
    """Write a number of layers for people: `1 layer`, `39 layers`."""
    return f"{count} layer{'s' * (count != 1)}"
