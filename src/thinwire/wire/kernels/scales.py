"""The scale of every block of a tile, as in `thinwire.wire.scales`.

The largest magnitude is found on the integer view of the floats: without their sign bit, the bits
of floats are ordered like the floats, and NaN and Inf come out on top, so that one comparison finds
them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from thinwire.wire.kernels.compiled import element, loop
from thinwire.wire.kernels.memory import STRIP, floats_at, halves_at, prefetch
from thinwire.wire.scales import SMALLEST_SCALE, ScaleRule

__all__ = [
    "INFINITY",
    "NAN",
    "NOTHING",
    "Rule",
    "clear_codes",
    "extremes",
    "inverse_of",
    "invert",
    "largest_magnitude",
    "load_scales",
    "magnitudes",
    "ordered",
    "round_scales",
    "rule_of",
    "scale_magnitudes",
    "scale_of",
    "smallest_and_largest",
    "store_scales",
]

NOTHING = np.empty(0, np.uint8)  # to prefetch

INFINITY = np.int32(0x7F800000)
NAN = np.int32(0x7FC00000)
_MAGNITUDE = np.int32(0x7FFFFFFF)
_SMALLEST_SCALE = np.float32(SMALLEST_SCALE)
_NEGATIVE_INFINITY = np.int32(-0x7F800001)  # in the order of `ordered`


@element
def largest_magnitude(bits: Any, start: Any, width: int) -> Any:
    """The largest magnitude of ``width`` floats from ``start`` on, all as float bits, int32."""
    largest, strips = np.int32(0), start + width // STRIP * STRIP
    for first in range(start, strips, STRIP):
        top = np.int32(0)  # of this strip, so that strips do not wait for each other
        for i in range(STRIP):
            magnitude = np.int32(bits[np.uint64(first + i)] & _MAGNITUDE)
            top = magnitude if magnitude > top else top
        largest = top if top > largest else largest
    for k in range(np.uint64(strips), np.uint64(start + width)):
        magnitude = np.int32(bits[k] & _MAGNITUDE)
        largest = magnitude if magnitude > largest else largest
    return largest


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
        for start in range(block * width, end, STRIP):
            size = min(STRIP, end - start)
            prefetch(ahead, start * ahead_bytes, (start + size) * ahead_bytes)
            magnitude = largest_magnitude(bits, start, size)
            largest = magnitude if magnitude > largest else largest
        out[block] = largest


@element
def smallest_and_largest(bits: Any, start: Any, width: int) -> Any:
    """The smallest and the largest of ``width`` floats from ``start`` on, all as float bits.

    Unless all are finite they are 0 and NaN.
    """
    low, high = _MAGNITUDE, np.int32(-0x80000000)
    strips = start + width // STRIP * STRIP
    for first in range(start, strips, STRIP):
        bottom, top = _MAGNITUDE, np.int32(-0x80000000)
        for i in range(STRIP):
            key = np.int32(ordered(bits[np.uint64(first + i)]))
            bottom = key if key < bottom else bottom
            top = key if key > top else top
        low = bottom if bottom < low else low
        high = top if top > high else high
    for k in range(np.uint64(strips), np.uint64(start + width)):
        key = np.int32(ordered(bits[k]))
        low = key if key < low else low
        high = key if key > high else high
    is_finite = low > _NEGATIVE_INFINITY and high < INFINITY
    return (
        np.int32(ordered(low)) if is_finite else np.int32(0),
        np.int32(ordered(high)) if is_finite else NAN,
    )


@loop
def extremes(values: Any, width: int, lowest: Any, highest: Any) -> None:
    """`smallest_and_largest` of each block of ``width`` values."""
    bits = values.view(np.int32)
    for block in range(lowest.size):
        lowest[block], highest[block] = smallest_and_largest(bits, block * width, width)


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


@element
def scale_of(raw: Any, magnitude: Any, rule: Rule) -> Any:
    """The float32 scale ``raw``, rounded as `ScaleRule.round` does.

    Args:
        raw: float32.
        magnitude: int32, below `INFINITY` where the block is finite; otherwise its scale is NaN.
        rule: how to round.
    """
    rounded = np.int32(np.int32(np.float32(raw).view(np.int32) + rule.added) & rule.mask)
    rounded = rounded if rounded < rule.largest else rule.largest
    rounded = rounded if raw >= _SMALLEST_SCALE else np.int32(0)
    return np.int32(rounded if magnitude < INFINITY else NAN).view(np.float32)


@loop
def round_scales(raw: Any, finite: Any, rule: Rule) -> None:
    """`scale_of` for float32 scales ``raw`` in place, and as many magnitudes ``finite``."""
    for i in range(raw.size):
        raw[i] = scale_of(raw[i], finite[i], rule)


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


@element
def inverse_of(scale: Any, numerator: Any) -> Any:
    """What to multiply with instead of dividing; 0 for 0 and NaN, so that every code becomes 0."""
    inverse = numerator / scale
    return inverse if scale > np.float32(0) else np.float32(0)


@loop
def invert(scales: Any, numerator: Any) -> None:
    """Replace scales by their `inverse_of`."""
    for i in range(scales.size):
        scales[i] = inverse_of(scales[i], numerator)


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
