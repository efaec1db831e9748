"""The largest magnitudes of a tensor, found by counting, in memory that does not grow with it.

    note [counting]
    Without their sign bit, the bits of floats are ordered like the floats. The threshold, which is
    the k-th largest magnitude, is found from its high bits down: count how many magnitudes fall
    into each of 2048 ranges, keep the range that holds the k-th, and divide that one likewise,
    three times in all. A sample says first where the threshold will roughly be. What lies below is
    passed over by comparing 32 elements at a time, so that counting costs little more than reading.
    Should the sample mislead, the count shows it, and everything is counted.

NaN counts as larger than Inf, and every NaN as the same, as in `thinwire.wire.reference.sparse`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from thinwire.wire.kernels.compiled import element, entry, loop
from thinwire.wire.kernels.halves import FLOAT32, widen
from thinwire.wire.kernels.memory import floats_at, halves_at, keep, words_at
from thinwire.wire.kernels.scales import INFINITY, NAN

__all__ = [
    "CHUNK_ELEMENTS",
    "STRIP_ELEMENTS",
    "Source",
    "magnitude",
    "next_hit",
    "reaching",
    "strip_bits",
    "threshold_of",
]

# Looked at, and widened, while it is in the nearest cache.
STRIP_ELEMENTS = 4096
CHUNK_ELEMENTS = 32

_MAGNITUDE = np.int32(0x7FFFFFFF)
_INT, _HITS = ir.IntType(32), ir.IntType(CHUNK_ELEMENTS)
_CHUNK = ir.VectorType(_INT, CHUNK_ELEMENTS)

# The threshold's bits are found 11, 10 and 10 at a time.
_SHIFTS = (20, 10, 0)
_NUM_RANGES = 2048

# A sample of this many, or of one element in 64 of a small tensor.
_SAMPLE_ELEMENTS = 8192
_ELEMENTS_PER_SAMPLE = 64


def _compare_chunk(typing_context: Any, address: Any, low: Any) -> Any:
    """One bit per element of a chunk of float bits: 1 where the magnitude is ``low`` or more."""
    del typing_context, address, low

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        del context, signature
        chunk = builder.load(builder.inttoptr(args[0], _CHUNK.as_pointer()), align=4, typ=_CHUNK)
        mask = ir.Constant(_CHUNK, [int(_MAGNITUDE)] * CHUNK_ELEMENTS)
        empty, first = ir.Constant(_CHUNK, ir.Undefined), ir.Constant(_INT, 0)
        lows = builder.shuffle_vector(
            builder.insert_element(empty, args[1], first),
            empty,
            ir.Constant(_CHUNK, [0] * CHUNK_ELEMENTS),
        )
        hits = builder.icmp_signed(">=", builder.and_(chunk, mask), lows)
        return builder.bitcast(hits, _HITS)

    return types.uint32(types.int64, types.int32), generate


def _count_trailing_zeros(typing_context: Any, word: Any) -> Any:
    del typing_context, word

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        del context, signature
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.uint32(types.uint32), generate


_hits_of_chunk: Any = intrinsic(_compare_chunk)
_trailing_zeros: Any = intrinsic(_count_trailing_zeros)


class Source(NamedTuple):
    """A flat tensor.

    Attributes:
        address: where it begins.
        numel: its elements.
        kind: how they are stored: FLOAT32, BFLOAT16 or FLOAT16.
    """

    address: int
    numel: int
    kind: int


@entry
def threshold_of(x: Source, num_kept: int) -> Any:
    """The ``num_kept``-th largest magnitude, and how many that are equal to it are kept.

    Args:
        x: at least ``num_kept`` elements.
        num_kept: at least 1.

    Returns:
        The threshold as float32 bits, int32, and a count of at least 1.
    """
    scratch, counts = np.empty(STRIP_ELEMENTS, np.float32), np.empty(_NUM_RANGES, np.int64)
    address = scratch.ctypes.data
    low = _guess(x, num_kept, counts, address)
    _count(x, low, _SHIFTS[0], counts, address)
    if counts.sum() < num_kept:
        low = 0
        _count(x, low, _SHIFTS[0], counts, address)
    left = num_kept
    for shift in _SHIFTS:
        ranges = counts
        if shift != _SHIFTS[0]:
            ranges = counts[: _NUM_RANGES // 2]
            _count(x, low, shift, ranges, address)
        place, left = _place_of(ranges, left)
        low += place << shift
    keep(scratch)
    return np.int32(low), left


@loop
def _place_of(counts: Any, rank: int) -> Any:
    """The range that holds the ``rank``-th largest, and its rank within that range."""
    place = counts.size - 1
    while counts[place] < rank:
        rank -= counts[place]
        place -= 1
    return place, rank


@loop
def _guess(x: Source, num_kept: int, counts: Any, scratch: int) -> Any:
    """Float bits that the threshold will hardly be below."""
    num_samples = min(_SAMPLE_ELEMENTS, x.numel // _ELEMENTS_PER_SAMPLE)
    if num_samples == 0:
        return 0
    counts[:] = 0
    step = x.numel // num_samples
    for index in range(num_samples):
        bits = strip_bits(x, index * step, 1, scratch)
        counts[magnitude(bits[0]) >> np.int32(_SHIFTS[0])] += 1
    # As many as a share of the sample, and some more: four times what chance may move.
    expected = num_kept * num_samples / x.numel
    wanted = expected + 4 * np.sqrt(expected) + 4
    if wanted >= num_samples:
        return 0
    place, _ = _place_of(counts, int(wanted))
    return place << _SHIFTS[0]


@loop
def _count(x: Source, low: int, shift: int, counts: Any, scratch: int) -> None:
    """How many magnitudes are in each range of ``2**shift`` from ``low`` on."""
    counts[:] = 0
    for start in range(0, x.numel, STRIP_ELEMENTS):
        bits = strip_bits(x, start, min(STRIP_ELEMENTS, x.numel - start), scratch)
        for chunk in range(0, bits.size, CHUNK_ELEMENTS):
            hits = reaching(bits, chunk, np.int32(low))
            while hits:
                i, hits = next_hit(chunk, hits)
                above = np.int64(magnitude(bits[i])) - low
                place = above >> shift
                if above >= 0 and place < counts.size:
                    counts[np.uint64(place)] += 1


@loop
def strip_bits(x: Source, start: int, size: int, scratch: int) -> Any:
    """The float32 bits of ``size`` elements from ``start`` on, int32.

    They lie in the tensor's own memory, or widened at the address ``scratch``.
    """
    if x.kind == FLOAT32:
        return words_at(x.address + 4 * start, size)
    widen(halves_at(x.address + 2 * start, size), x.kind, floats_at(scratch, size))
    return words_at(scratch, size)


@element
def magnitude(bits: Any) -> Any:
    """Float bits without sign; those of every NaN are the same."""
    unsigned = np.int32(bits & _MAGNITUDE)
    return unsigned if unsigned <= INFINITY else NAN


@element
def reaching(bits: Any, start: int, low: Any) -> Any:
    """One bit per element of the chunk that begins at ``start``.

    0 where the magnitude is below ``low``; where it is 1 it may be too: of a NaN, or of a chunk
    that ends early.
    """
    left = bits.size - start
    if left < CHUNK_ELEMENTS:
        return np.uint32((np.uint64(1) << np.uint64(left)) - np.uint64(1))
    limit = low if low <= INFINITY else INFINITY  # a NaN may have fewer bits set than the one NaN
    return _hits_of_chunk(bits.ctypes.data + 4 * start, limit)


@element
def next_hit(start: int, hits: Any) -> Any:
    """The index of the first hit of a chunk, and the hits without it."""
    return np.uint64(start) + np.uint64(_trailing_zeros(hits)), hits & (hits - np.uint32(1))
