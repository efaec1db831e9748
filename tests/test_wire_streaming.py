"""Copies past the caches, at every alignment, and decodes that are large enough for them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from thinwire.formats import parse_format
from thinwire.wire import codec_for, reference_codec
from thinwire.wire.kernels import plans
from thinwire.wire.kernels.streaming import last_level_cache_bytes, settle, stream
from thinwire.wire.kernels.tiles import DECODE_TILE_ELEMENTS
from wire_cases import ALL, CPU, DTYPES, decoded, encoded

STREAMED = [
    text
    for text in ALL
    if text.startswith(("int4/24", "log5/24", "sign/24", "e4m3/32", "int4/32+hadamard"))
]
# blocks of whole cache lines, whose values never lie in memory before they are streamed
STREAMED += ["int8/128", "int4/128", "int3/16", "int8/128+shift", "int4/128+levels+bf16scale"]


@pytest.mark.parametrize("source_at", [0, 1, 60])
@pytest.mark.parametrize("target_at", [0, 4, 62, 63])
def test_a_copy_writes_its_bytes_and_no_other(source_at: int, target_at: int) -> None:
    source = np.arange(1000, dtype=np.uint16).astype(np.uint8)
    for size in (0, 1, 3, 63, 64, 65, 130, 500):
        target = np.full(1000, 0xAB, np.uint8)
        expected = target.copy()
        expected[target_at : target_at + size] = source[source_at : source_at + size]
        stream(source.ctypes.data + source_at, target.ctypes.data + target_at, size)
        settle()
        assert (target == expected).all()


def test_the_cache_has_a_size() -> None:
    assert 1 << 17 <= last_level_cache_bytes() <= 1 << 32


@pytest.mark.parametrize("text", STREAMED)
def test_streamed_values_are_the_same_bits(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # As if the cache had no room, so that small tensors go the way of large ones.
    monkeypatch.setattr(plans, "last_level_cache_bytes", lambda: 0)
    fmt = parse_format(text)
    reference, kernel = reference_codec(fmt), codec_for(fmt, CPU)
    # two tiles and a ragged block, and a size that no other test has: plans are remembered
    numel = 2 * DECODE_TILE_ELEMENTS + 77
    x = torch.randn(numel, generator=torch.Generator().manual_seed(1))
    payload = encoded(reference, x)
    for dtype in DTYPES:
        expected = decoded(reference, payload, numel, dtype)
        assert torch.equal(decoded(kernel, payload, numel, dtype), expected)
    expected, total = torch.empty(numel), torch.empty(numel)
    reference.decode_sum_into([payload] * 3, expected)
    kernel.decode_sum_into([payload] * 3, total)
    assert torch.equal(total, expected)
