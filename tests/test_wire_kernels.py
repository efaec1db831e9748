"""Kernels equal the reference, bit for bit: bytes out of any tensor, values out of any payload."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from thinwire.errors import InputError
from thinwire.formats import parse_format
from thinwire.wire import codec_for, reference_codec
from thinwire.wire.codec import Codec
from wire_cases import ALL, CPU, DTYPES, KEY, PAIRS, encoded, tensors

WITH_KERNEL = [
    text
    for text in ALL
    if codec_for(parse_format(text), CPU) is not reference_codec(parse_format(text))
]
PAIRS_WITH_KERNEL = [text for text in PAIRS if text in WITH_KERNEL]


def _codecs(text: str) -> tuple[Codec, Codec]:
    fmt = parse_format(text)
    return reference_codec(fmt), codec_for(fmt, CPU)


def _all_tensors(numel: int, dtype: torch.dtype) -> Iterator[Tensor]:
    for _, x in tensors(numel, dtype):
        yield x
    spoiled = torch.linspace(-3, 3, numel).to(dtype)
    spoiled[:: max(1, numel // 3)] = math.nan
    spoiled[numel // 2] = -math.inf
    yield spoiled
    yield torch.full((numel,), torch.finfo(dtype).max, dtype=dtype)


def _same_bits(first: Tensor, second: Tensor) -> bool:
    """Equal to the bit, the sign of zeros included; a NaN is a NaN."""
    if not torch.equal(first.isnan(), second.isnan()):
        return False
    first, second = (values.masked_fill(values.isnan(), 0) for values in (first, second))
    return torch.equal(first.view(torch.uint8), second.view(torch.uint8))


def test_all_formats_have_kernels_but_fp32_which_is_a_copy() -> None:
    assert set(ALL) - set(WITH_KERNEL) == {"fp32"}


@pytest.mark.parametrize("text", PAIRS_WITH_KERNEL)
def test_payloads_are_the_same_bytes(text: str) -> None:
    reference, kernel = _codecs(text)
    for dtype in DTYPES:
        for numel in (1, 2, 9, 131, 400):
            for x in _all_tensors(numel, dtype):
                assert torch.equal(encoded(reference, x), encoded(kernel, x))


@pytest.mark.parametrize("text", PAIRS_WITH_KERNEL)
def test_values_are_the_same_bits(text: str) -> None:
    reference, kernel = _codecs(text)
    for numel in (1, 9, 131, 400):
        for x in _all_tensors(numel, torch.float32):
            payload = encoded(reference, x)
            for dtype in DTYPES:
                expected, out = torch.empty(numel, dtype=dtype), torch.empty(numel, dtype=dtype)
                reference.decode_into(payload, expected)
                kernel.decode_into(payload, out)
                assert _same_bits(expected, out)


@pytest.mark.parametrize("text", PAIRS_WITH_KERNEL)
def test_sums_are_the_same_bits(text: str) -> None:
    reference, kernel = _codecs(text)
    for numel in (9, 400):
        payloads = [
            encoded(reference, x, KEY.fold(i))
            for i, x in enumerate(_all_tensors(numel, torch.float32))
        ]
        expected, out = torch.empty(numel), torch.empty(numel)
        reference.decode_sum_into(payloads, expected)
        kernel.decode_sum_into(payloads, out)
        assert _same_bits(expected, out)


@pytest.mark.parametrize(
    "text",
    [
        "int4/128",
        "int4/256+stochastic",
        "int4/2048+asym",
        "int4/128+asym+hadamard",
        "int8/96+hadamard",
        "int7/128",
        "int3/24+asym",
        "int8/4096+stochastic",
        "int5/128+shift",
        "int4/128+clip=95",
        "int4/24+asym+clip=75",
        "int4/128+levels",
        "e4m3/128",
        "log5/128",
        "sign/128",
        "sign/40",
        "topk=0.01",
        "topk=0.3",
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_of_many_tiles(text: str, dtype: torch.dtype) -> None:
    # Larger than several tiles (32768 elements); the last group of blocks and its last are ragged.
    numel = 3 * 32768 + 4096 + 3 * 128 + 77
    x = torch.randn(numel, generator=torch.Generator().manual_seed(1)).to(dtype)
    reference, kernel = _codecs(text)
    payload = encoded(kernel, x)
    assert torch.equal(payload, encoded(reference, x))
    expected, out = torch.empty(numel, dtype=dtype), torch.empty(numel, dtype=dtype)
    reference.decode_into(payload, expected)
    kernel.decode_into(payload, out)
    assert _same_bits(expected, out)


@pytest.mark.parametrize("text", ["int4/1048576", "int8/65536+asym"])
def test_blocks_larger_than_a_tile(text: str) -> None:
    numel = (1 << 20) + 5
    x = torch.randn(numel, generator=torch.Generator().manual_seed(2))
    reference, kernel = _codecs(text)
    assert torch.equal(encoded(kernel, x), encoded(reference, x))


@settings(max_examples=150, deadline=None)  # deadline: the first example may compile
@given(
    text=st.sampled_from(WITH_KERNEL),
    values=st.lists(st.floats(width=32), min_size=1, max_size=40),
    dtype=st.sampled_from(DTYPES),
    source=st.sampled_from(DTYPES),
)
def test_any_values(
    text: str, values: list[float], dtype: torch.dtype, source: torch.dtype
) -> None:
    x = torch.tensor(values).to(source)
    reference, kernel = _codecs(text)
    payload = encoded(reference, x)
    assert torch.equal(payload, encoded(kernel, x))
    expected, out = torch.empty(len(values), dtype=dtype), torch.empty(len(values), dtype=dtype)
    reference.decode_into(payload, expected)
    kernel.decode_into(payload, out)
    assert _same_bits(expected, out)


@settings(max_examples=100, deadline=None)
@given(text=st.sampled_from(WITH_KERNEL), payload=st.binary(min_size=200, max_size=200))
def test_any_bytes_decode_to_the_same(text: str, payload: bytes) -> None:
    # Bytes that no encoder wrote must not crash, and must not make ranks disagree.
    fmt = parse_format(text)
    numel = next(numel for numel in range(200, 0, -1) if fmt.wire_bytes(numel) <= 200)
    data = torch.frombuffer(bytearray(payload), dtype=torch.uint8)[: fmt.wire_bytes(numel)].clone()
    expected, out = (_outcome(codec, data, numel) for codec in _codecs(text))
    assert (expected is None) == (out is None)
    assert expected is None or out is None or _same_bits(expected, out)


def _outcome(codec: Codec, payload: Tensor, numel: int) -> Tensor | None:
    """The values of a payload, or None where the codec says that it is damaged."""
    out = torch.empty(numel)
    try:
        codec.decode_into(payload, out)
    except InputError:
        return None
    return out
