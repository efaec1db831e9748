"""What every format must keep, for every dtype, shape and kind of value: the door to this house."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from thinwire.formats import parse_format
from thinwire.wire import Key, decode, encode
from thinwire.wire.codec import Codec
from wire_bounds import error_bound
from wire_cases import (
    ALL,
    BLOCKED_PAIRS,
    DTYPES,
    KEY,
    PAIRS,
    SHAPES,
    block_of_each,
    codecs_of,
    decoded,
    encoded,
    rounding_of,
    tensors,
)


@pytest.mark.parametrize("text", PAIRS)
def test_shape_dtype_and_size(text: str) -> None:
    fmt = parse_format(text)
    for dtype in DTYPES:
        for shape in SHAPES:
            x = torch.linspace(-1, 1, math.prod(shape)).view(shape).to(dtype)
            payload = encode(x, fmt, key=KEY)
            assert payload.bytes.numel() == fmt.wire_bytes(x.numel())
            again = decode(payload)
            assert (again.dtype, again.shape) == (dtype, x.shape)


@pytest.mark.parametrize("text", PAIRS)
def test_error_is_bounded_and_finite_stays_finite(text: str) -> None:
    for codec in codecs_of(text):
        for dtype in DTYPES:
            for numel in (1, 9, 300):
                for name, x in tensors(numel, dtype):
                    payload = encoded(codec, x)
                    again = decoded(codec, payload, numel, dtype)
                    assert again.isfinite().all(), (name, dtype)
                    error = (again.double() - x.double()).abs()
                    bound = error_bound(codec.format, payload, x) + rounding_of(dtype, again)
                    assert (error <= bound).all(), (name, dtype, numel)


@pytest.mark.parametrize("text", [text for text in PAIRS if text != "fp32"])
def test_where_compression_is_claimed_something_is_lost(text: str) -> None:
    # An identity that calls itself a codec would pass every upper bound.
    # +asym gives back the smallest of 8 elements exactly, so 7 of 8 is what all must lose.
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    for codec in codecs_of(text):
        again = decoded(codec, encoded(codec, x), 1000, torch.float32)
        assert (again != x).float().mean() >= 0.87
        assert codec.format.wire_bytes(1000) < 4000


@pytest.mark.parametrize("text", BLOCKED_PAIRS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_block_that_is_not_finite_decodes_to_nan_and_no_other_does(text: str, bad: float) -> None:
    for codec in codecs_of(text):
        for dtype in DTYPES:
            x = torch.linspace(-2, 2, 300).to(dtype)
            x[[0, 150, 299]] = bad
            hit = torch.isin(block_of_each(codec.format, 300), _blocks_at(codec, [0, 150, 299]))
            again = decoded(codec, encoded(codec, x), 300, dtype)
            assert torch.equal(again.isnan(), hit)


@pytest.mark.parametrize("text", ["fp32", "bf16", "fp16"])
def test_a_cast_keeps_nan_and_inf_where_they_are(text: str) -> None:
    x = torch.tensor([1.0, math.nan, -math.inf, 2.0, math.inf])
    for dtype in DTYPES:
        again = decode(encode(x.to(dtype), text))
        assert again.isnan().tolist() == [False, True, False, False, False]
        assert again[[2, 4]].tolist() == [-math.inf, math.inf]


@pytest.mark.parametrize("text", PAIRS)
def test_zeros_stay_zeros(text: str) -> None:
    for codec in codecs_of(text):
        for dtype in DTYPES:
            x = torch.zeros(77, dtype=dtype)
            assert (decoded(codec, encoded(codec, x), 77, dtype) == 0).all()


@pytest.mark.parametrize("text", PAIRS)
def test_strides_do_not_matter(text: str) -> None:
    x = torch.randn(24, 20, generator=torch.Generator().manual_seed(2))
    views = [x.t(), x[::3, 1::2], x.view(4, 6, 4, 5).to(memory_format=torch.channels_last)]
    for view in views:
        payload = encode(view, text, key=KEY)
        dense = encode(view.clone(memory_format=torch.contiguous_format), text, key=KEY)
        assert torch.equal(payload.bytes, dense.bytes)
        assert decode(payload).shape == view.shape


@pytest.mark.parametrize("text", PAIRS)
def test_the_same_key_gives_the_same_bytes_and_another_key_others(text: str) -> None:
    x = torch.randn(2000, generator=torch.Generator().manual_seed(4))
    for codec in codecs_of(text):
        first = encoded(codec, x)
        assert torch.equal(first, encoded(codec, x))
        for key in (
            Key(seed=8, step=3, parameter="layer.weight", rank=1),
            Key(seed=7, step=4, parameter="layer.weight", rank=1),
            Key(seed=7, step=3, parameter="layer.bias", rank=1),
            Key(seed=7, step=3, parameter="layer.weight", rank=2),
            KEY.fold("again"),
        ):
            assert torch.equal(first, encoded(codec, x, key)) != codec.format.is_stochastic


@pytest.mark.parametrize("text", PAIRS)
def test_blocks_do_not_see_each_other(text: str) -> None:
    # Slicing whole blocks and decoding commute: a slice's payload is the slices of the parts.
    fmt = parse_format(text)
    if fmt.family == "topk" or "levels" in fmt.options:
        return  # the tensor as a whole decides what is kept, or where the levels are
    block = fmt.block or 4
    x = torch.randn(4 * block, generator=torch.Generator().manual_seed(5))
    for codec in codecs_of(text):
        whole = decoded(codec, encoded(codec, x), 4 * block, torch.float32)
        changed = x.clone()
        changed[2 * block :] *= 100
        again = decoded(codec, encoded(codec, changed), 4 * block, torch.float32)
        assert torch.equal(whole[: 2 * block], again[: 2 * block])
        first = decoded(codec, encoded(codec, x[: 2 * block]), 2 * block, torch.float32)
        assert torch.equal(whole[: 2 * block], first)


@pytest.mark.parametrize("text", PAIRS)
def test_two_codecs_side_by_side_act_as_if_alone(text: str) -> None:
    x = torch.randn(500, generator=torch.Generator().manual_seed(6))
    alone = encode(x, text, key=KEY)
    between = [
        encode(x * 3, other, key=KEY.fold(other)) for other in ("int8/24+stochastic", "bf16")
    ]
    beside = encode(x, text, key=KEY)
    assert torch.equal(alone.bytes, beside.bytes)
    assert torch.equal(decode(alone), decode(beside))
    assert len(between) == 2


@pytest.mark.parametrize("text", PAIRS)
def test_the_sum_is_taken_in_float32_in_the_order_given(text: str) -> None:
    for codec in codecs_of(text):
        payloads = []
        for rank in range(4):
            # Ranks whose gradients differ by nine orders of magnitude: every scale travels.
            generator = torch.Generator().manual_seed(rank)
            x = torch.randn(300, generator=generator) * (1e-6 if rank == 0 else 1e3 * rank)
            payloads.append(encoded(codec, x, KEY.fold(rank)))
        parts = [decoded(codec, payload, 300, torch.float32) for payload in payloads]
        for order in ([0, 1, 2, 3], [3, 0, 2, 1], [2], [1, 1]):
            expected = parts[order[0]].clone()
            for rank in order[1:]:
                expected += parts[rank]
            total = torch.full((300,), math.nan)
            codec.decode_sum_into([payloads[rank] for rank in order], total)
            if "hadamard" in text:  # the rotated values are summed, and rotated back once
                largest = sum(part.abs().amax() for part in parts)
                assert ((total - expected).abs() <= largest * 2.0**-19).all()
            else:
                assert torch.equal(total, expected)


@settings(max_examples=200, deadline=None)  # deadline: the first example of a format may compile
@given(
    text=st.sampled_from(ALL),
    dtype=st.sampled_from(DTYPES),
    values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=40),
)
def test_any_finite_values(text: str, dtype: torch.dtype, values: list[float]) -> None:
    # Up to 3.3e38: the last percent below the largest float32 is cut off by 16-bit scales.
    x = torch.tensor(values).clamp(-3.3e38, 3.3e38).to(dtype).nan_to_num()
    for codec in codecs_of(text):
        payload = encoded(codec, x)
        again = decoded(codec, payload, x.numel(), dtype)
        assert again.isfinite().all()
        error = (again.double() - x.double()).abs()
        bound = error_bound(codec.format, payload, x) + rounding_of(dtype, again)
        assert (error <= bound).all()


def _blocks_at(codec: Codec, elements: list[int]) -> Tensor:
    assert codec.format.block is not None
    return torch.tensor(elements) // codec.format.block
