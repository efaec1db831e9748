"""Tables as stairs, and shifts of the width of the word: the two tools of loops over bytes."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest

from thinwire.wire.kernels.shifts import left, right
from thinwire.wire.kernels.stairs import climb, rises_between, steps_of


@numba.njit
def _climb_all(starts: Any, rises: Any, out: Any) -> None:
    for byte in range(256):
        out[byte] = climb(np.uint8(byte), starts, rises)


@numba.njit
def _shift_all(words: Any, count: Any, lefts: Any, rights: Any) -> None:
    for i in range(words.size):
        lefts[i], rights[i] = left(words[i], count), right(words[i], count)


@pytest.mark.parametrize(
    ("starts", "heights"),
    [
        ((), ()),
        ((0,), (200,)),
        ((1, 128, 255), (7, 3, 250)),  # down as well as up
        (range(16), range(15, -1, -1)),
    ],
)
def test_a_table_reads_the_height_of_the_last_stair_reached(starts: Any, heights: Any) -> None:
    out = np.full(256, 0xCD, np.uint8)
    _climb_all(steps_of(starts), rises_between((0, *heights)), out)
    expected = np.zeros(256, np.uint8)
    for start, height in zip(starts, heights, strict=True):
        expected[start:] = height
    assert out.tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.uint32])
def test_shifts_fill_with_zeros_and_drop_what_falls_out(dtype: Any) -> None:
    info = np.iinfo(dtype)
    words = np.array([0, 1, 5, info.max, info.min], dtype)
    unsigned = words.astype(np.int64) & (1 << info.bits) - 1
    for count in range(info.bits):
        lefts, rights = np.empty_like(words), np.empty_like(words)
        _shift_all(words, count, lefts, rights)
        assert lefts.tolist() == (unsigned << count).astype(dtype).tolist()
        assert rights.tolist() == (unsigned >> count).astype(dtype).tolist()
