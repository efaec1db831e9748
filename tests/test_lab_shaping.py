"""The filter's sizes: a bucket that holds an offload buffer, a queue in which nothing is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinwire.lab.shaping import bucket_bytes, shaping


@pytest.mark.parametrize(
    ("rate", "words"),
    [
        (1e6, "tbf rate 1000000bit burst 65602b limit 1065602b"),
        (200e6, "tbf rate 200000000bit burst 125000b limit 1375000b"),
        (10e9, "tbf rate 10000000000bit burst 4194304b limit 66694304b"),
        (1e12, "tbf rate 1000000000000bit burst 4194304b limit 268435456b"),
    ],
)
def test_words_for_tc(rate: float, words: str) -> None:
    assert shaping(rate) == words


@given(st.floats(min_value=1e6, max_value=1e12))
def test_a_bucket_always_holds_a_buffer(rate: float) -> None:
    # 64 KiB and its headers (gso_max_size); a link that rests saves 5 ms at most beyond that.
    assert 65536 + 66 <= bucket_bytes(rate) <= max(65536 + 66, rate / 8 * 0.005 + 1)
