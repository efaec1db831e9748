"""The scale of every block of a tile, as in `thinwire.wire.scales`.

The largest magnitude is found on the integer view of the floats: without their sign bit, the bits
of floats are ordered like the floats, and NaN and Inf come out on top, so that one comparison finds
them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from thinwire.wire.kernels.compiled import element, loop
from thinwire.wire.kernels.memory import floats_at, halves_at, prefetch
from thinwire.wire.scales import SMALLEST_SCALE, ScaleRule

__all__ = [
    "INFINITY",
    "NAN",
    "Rule",
    "clear_codes",
    "extremes",
    "invert",
    "load_scales",
    "magnitudes",
    "ordered",
    "round_scales",
    "rule_of",
    "scale_magnitudes",
    "store_scales",
]

# Elements between two requests for memory: few enough that the requests never queue up.
_STRETCH = 128

INFINITY = np.int32(0x7F800000)
NAN = np.int32(0x7FC00000)
_MAGNITUDE = np.int32(0x7FFFFFFF)
_SMALLEST_SCALE = np.float32(SMALLEST_SCALE)
_NEGATIVE_INFINITY = np.int32(-0x7F800001)  # in the order of `ordered`


@loop
def magnitudes(values: Any, width: int, ahead: Any, out: Any) -> None:
    """The largest magnitude of each block of ``width`` values, as float bits, int32.

    Meanwhile, bytes ``ahead`` are prefetched.
    """
    bits = values.view(np.int32)
    ahead_bytes = ahead.size // values.size
    for block in range(out.size):
        largest = np.int32(0)
        end = (block + 1) * width
        for start in range(block * width, end, _STRETCH):
            stretch = bits[start : min(start + _STRETCH, end)]
            prefetch(ahead, start * ahead_bytes, (start + stretch.size) * ahead_bytes)
            for i in range(stretch.size):
                magnitude = stretch[i] & _MAGNITUDE
                largest = magnitude if magnitude > largest else largest
        out[block] = largest


@loop
def extremes(values: Any, width: int, ahead: Any, lowest: Any, highest: Any) -> None:
    """The smallest and the largest value of each block of ``width`` values, as float bits.

    A block that is not finite gets NaN as its highest value and 0 as its lowest. Meanwhile, bytes
    ``ahead`` are prefetched.
    """
    bits = values.view(np.int32)
    ahead_bytes = ahead.size // values.size
    for block in range(lowest.size):
        low, high = _MAGNITUDE, np.int32(-0x80000000)
        end = (block + 1) * width
        for start in range(block * width, end, _STRETCH):
            stretch = bits[start : min(start + _STRETCH, end)]
            prefetch(ahead, start * ahead_bytes, (start + stretch.size) * ahead_bytes)
            for i in range(stretch.size):
                key = np.int32(ordered(stretch[i]))
                low = key if key < low else low
                high = key if key > high else high
        finite = low > _NEGATIVE_INFINITY and high < INFINITY
        lowest[block] = ordered(low) if finite else np.int32(0)
        highest[block] = ordered(high) if finite else NAN


class Rule(NamedTuple):
    """How `thinwire.wire.scales.ScaleRule` rounds, as numbers for a loop.

    Attributes:
        span: float32, what the magnitude or the range of a block is divided by to get the scale.
        added, mask: int32, how to cut the bits of a scale.
        largest: int32, the bits of the largest scale.
    """

    span: Any
    added: Any
    mask: Any
    largest: Any


def rule_of(rule: ScaleRule, span: float) -> Rule:
    """A rule for loops, for magnitudes that are divided by ``span``."""
    return Rule(
        span=np.float32(span),
        added=np.int32(rule.added),
        mask=np.int32(rule.mask),
        largest=np.float32(rule.largest).view(np.int32),
    )


@loop
def round_scales(raw: Any, finite: Any, rule: Rule) -> None:
    """Round the float32 scales ``raw`` in place, as `ScaleRule.round` does.

    Args:
        raw: float32 scales.
        finite: int32, below `INFINITY` where the block is finite.
        rule: how to round.
    """
    bits = raw.view(np.int32)
    for i in range(raw.size):
        rounded = np.int32(np.int32(bits[i] + rule.added) & rule.mask)
        rounded = rounded if rounded < rule.largest else rule.largest
        rounded = rounded if raw[i] >= _SMALLEST_SCALE else np.int32(0)
        bits[i] = rounded if finite[i] < INFINITY else NAN


@loop
def scale_magnitudes(magnitudes: Any, rule: Rule, out: Any) -> None:
    """The rounded scales of blocks whose largest magnitudes are given as float bits."""
    floats = magnitudes.view(np.float32)
    for i in range(out.size):
        out[i] = floats[i] / rule.span
    round_scales(out, magnitudes, rule)


@loop
def store_scales(scales: Any, address: int, scale_bytes: int) -> None:
    """Write the float32 scales of a tile to an address in the payload, 2 or 4 bytes each."""
    if scale_bytes == 4:
        wide = floats_at(address, scales.size)
        for i in range(scales.size):
            wide[i] = scales[i]
    else:
        half = halves_at(address, scales.size)
        for i in range(scales.size):
            half[i] = np.uint16(np.float32(scales[i]).view(np.int32) >> np.int32(16))


@loop
def load_scales(address: int, scale_bytes: int, scales: Any) -> None:
    """The inverse of `store_scales`."""
    if scale_bytes == 4:
        wide = floats_at(address, scales.size)
        for i in range(scales.size):
            scales[i] = wide[i]
    else:
        half = halves_at(address, scales.size)
        for i in range(scales.size):
            scales[i] = np.int32(np.int32(half[i]) << np.int32(16)).view(np.float32)


@loop
def invert(scales: Any, numerator: Any) -> None:
    """Replace scales by what to multiply with; 0 and NaN by 0, so that every code becomes 0."""
    for i in range(scales.size):
        inverse = numerator / scales[i]
        scales[i] = inverse if scales[i] > np.float32(0) else np.float32(0)


@loop
def clear_codes(finite: Any, codes: Any) -> None:
    """Zero the codes of blocks whose magnitude, as float bits, is not finite."""
    largest = np.int32(0)
    for block in range(finite.size):
        largest = finite[block] if finite[block] > largest else largest
    if largest < INFINITY:
        return
    stride = codes.size // finite.size
    for block in range(finite.size):
        if finite[block] >= INFINITY:
            codes[block * stride : (block + 1) * stride] = 0


@element
def ordered(bits: Any) -> Any:
    """Float bits as integers that are ordered like the floats; its own inverse."""
    return bits ^ ((bits >> np.int32(31)) & _MAGNITUDE)
