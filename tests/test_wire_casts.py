"""Casts: the same bits as torch where it can, and never an Inf out of a finite number."""

from __future__ import annotations

import math

import pytest
import torch

from thinwire.wire import decode, encode
from wire_cases import DTYPES

WIRE_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@pytest.mark.parametrize("family", WIRE_DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_payloads_are_what_torch_stores(family: str, dtype: torch.dtype) -> None:
    x = torch.linspace(-300, 300, 1001).to(dtype)
    payload = encode(x, family)
    stored = x.to(WIRE_DTYPES[family])
    assert torch.equal(payload.bytes[: stored.nbytes], stored.view(torch.uint8))
    assert torch.equal(decode(payload), stored.to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_dtype_on_the_wire_loses_nothing(dtype: torch.dtype) -> None:
    family = next(family for family, wire in WIRE_DTYPES.items() if wire == dtype)
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32)
    x = (bits.to(torch.int16) if dtype.itemsize == 2 else bits << 16).view(dtype)
    again = decode(encode(x, family))  # every 16-bit number, NaN and Inf with their bits among them
    assert torch.equal(again.view(torch.uint8), x.view(torch.uint8))


def test_a_finite_number_beyond_the_range_becomes_the_largest() -> None:
    x = torch.tensor([1e30, -1e30, 65504.0, 65519.9, 65520.0, math.inf, math.nan])
    again = decode(encode(x, "fp16"))
    assert again[:5].tolist() == [65504, -65504, 65504, 65504, 65504]
    assert again[5].isinf()
    assert again[6].isnan()
    largest = torch.full((3,), torch.finfo(torch.float32).max)
    assert (decode(encode(largest, "bf16")) == torch.finfo(torch.bfloat16).max).all()


def test_a_cast_rounds_to_nearest_even() -> None:
    one_and_half_a_step = torch.tensor([1 + 2.0**-8, 1 + 3 * 2.0**-8])
    assert decode(encode(one_and_half_a_step, "bf16")).tolist() == [1.0, 1 + 2.0**-6]


def test_the_bytes_behind_the_last_element_are_zero() -> None:
    assert encode(torch.ones(3), "bf16").bytes.tolist() == [0x80, 0x3F] * 3 + [0, 0]
