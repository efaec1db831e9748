"""What a message repeats is short, and written as files write it."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinwire.quoting import LONGEST, quoted, shortened

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_it_is_one_short_line(value: Any) -> None:
    told = quoted(value)
    # escapes of a text's characters take up to ten each
    assert len(told) <= 10 * LONGEST + len("'...'")
    assert len(told.splitlines()) <= 1


@given(st.text(max_size=LONGEST))
def test_what_is_short_is_whole(text: str) -> None:
    assert shortened(text) == text
    assert quoted(text) == repr(text)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("x" * 61, f"'{'x' * 60}...'"),
        (True, "true"),
        (None, "null"),
        (datetime.date(2020, 1, 1), "2020-01-01"),
        (datetime.time(7, 30), "07:30:00"),
        ([1, "a", False], "[1, 'a', false]"),
        ({"a": {"b": 1}}, "{a = {b = 1}}"),
        ([[[[1]]]], "[[[...]]]"),
        (10**400, "a number of more than 300 digits"),
        (-(10**5000), "a number of more than 300 digits"),
        (10**100, f"1{'0' * 59}..."),
        (json.loads("[" * 900 + "]" * 900), "[[[...]]]"),
        (list(range(10**6)), "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ...]"),
    ],
    ids=lambda value: str(value)[:20] if not isinstance(value, int) else "number",
)
def test_values_as_files_write_them(value: object, told: str) -> None:
    assert quoted(value) == told
