"""16-bit floats by their bits: all of them, and all the ways to round to them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire.wire.kernels.halves import BFLOAT16, FLOAT16, narrow, widen
from thinwire.wire.reference import narrow as reference

KINDS = {BFLOAT16: torch.bfloat16, FLOAT16: torch.float16}


@pytest.mark.parametrize("kind", KINDS)
def test_every_16_bit_number_widens_as_torch_widens_it(kind: int) -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    wide = np.empty(2**16, np.float32)
    widen(bits, kind, wide)
    expected = torch.from_numpy(bits.view(np.int16)).view(KINDS[kind]).float()
    out = torch.from_numpy(wide)
    assert torch.equal(out.isnan(), expected.isnan())
    real = ~expected.isnan()
    assert torch.equal(out[real].view(torch.int32), expected[real].view(torch.int32))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=50))
def test_any_float32_narrows_as_the_reference_narrows_it(kind: int, bits: list[int]) -> None:
    values = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    out = np.empty(len(bits), np.uint16)
    narrow(values.numpy(), kind, out)
    expected = reference.narrow(values, KINDS[kind])
    got = torch.from_numpy(out.view(np.int16)).view(KINDS[kind])
    assert torch.equal(got.isnan(), expected.isnan())
    real = ~expected.isnan()
    assert torch.equal(got[real].view(torch.int16), expected[real].view(torch.int16))


@pytest.mark.parametrize("kind", KINDS)
def test_ties_and_edges(kind: int) -> None:
    # Around every 16-bit number: itself, both halfway points, and their neighbours.
    numbers = torch.arange(0, 2**15, dtype=torch.int16).view(KINDS[kind]).float()
    numbers = numbers[numbers.isfinite()]
    half_way = (numbers[1:].double() + numbers[:-1].double()).div(2).float()
    near = half_way.view(torch.int32)
    values = torch.cat(
        [numbers, half_way, (near + 1).view(torch.float32), (near - 1).view(torch.float32)]
    )
    values = torch.cat([values, -values])
    out = np.empty(values.numel(), np.uint16)
    narrow(values.numpy(), kind, out)
    expected = reference.narrow(values, KINDS[kind])
    assert torch.equal(torch.from_numpy(out.view(np.int16)), expected.view(torch.int16))
