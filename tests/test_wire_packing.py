"""Packings: many parameters as one run of bytes, each as if it travelled alone."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from thinwire.errors import ConfigError
from thinwire.formats import parse_format
from thinwire.wire import Key, Packing, Segment, decode, encode
from wire_cases import KEY

FORMATS = ("int4/32", "fp32", "int8/8+stochastic", "bf16", "bf16", "fp32", "fp32", "e4m3/16")
SIZES = (100, 3, 77, 5, 6, 0, 1, 40)
PADDINGS = (0, 2, 0, 0, 1, 0, 3, 5)


def _segments() -> list[Segment]:
    return [
        Segment(numel, parse_format(text), f"p{index}", padding)
        for index, (numel, text, padding) in enumerate(zip(SIZES, FORMATS, PADDINGS, strict=True))
    ]


def _flat(packing: Packing, seed: int = 0) -> Tensor:
    return torch.randn(packing.numel, generator=torch.Generator().manual_seed(seed))


def _encoded(packing: Packing, flat: Tensor, key: Key = KEY) -> Tensor:
    payload = torch.full((packing.wire_bytes,), 0xAB, dtype=torch.uint8)
    packing.encode_into(flat, payload, key)
    return payload


def test_sizes_and_offsets_are_sums_over_segments() -> None:
    packing = Packing(_segments())
    assert packing.numel == sum(SIZES) + sum(PADDINGS)
    assert packing.wire_bytes == sum(s.format.wire_bytes(s.numel) for s in packing.segments)
    assert packing.starts[:3] == [0, 100, 105]
    assert packing.offsets[1] == packing.segments[0].wire_bytes
    assert all(offset % 4 == 0 for offset in packing.offsets)


def test_every_segment_travels_as_if_alone() -> None:
    packing = Packing(_segments())
    flat = _flat(packing)
    payload = _encoded(packing, flat)
    for segment, start, offset in zip(
        packing.segments, packing.starts, packing.offsets, strict=True
    ):
        alone = encode(
            flat[start : start + segment.numel], segment.format, key=KEY.fold(segment.name)
        )
        assert torch.equal(payload[offset : offset + segment.wire_bytes], alone.bytes)


def test_padding_is_not_read_and_decodes_to_zero() -> None:
    packing = Packing(_segments())
    flat = _flat(packing)
    payload = _encoded(packing, flat)
    spoiled = flat.clone()
    out = torch.full_like(flat, math.nan)
    packing.decode_into(payload, out)
    total = torch.full_like(flat, math.nan)
    packing.decode_sum_into([payload, payload], total)
    for segment, start in zip(packing.segments, packing.starts, strict=True):
        padding = slice(start + segment.numel, start + segment.numel + segment.padding)
        spoiled[padding] = math.nan
        assert (out[padding] == 0).all()
        assert (total[padding] == 0).all()
    assert torch.equal(_encoded(packing, spoiled), payload)
    assert torch.equal(total, out + out)


def test_regrouping_parameters_keeps_their_random_numbers() -> None:
    fmt = parse_format("int4/32+stochastic")
    a, b, c = (Segment(50, fmt, name) for name in "abc")
    flat = torch.randn(150, generator=torch.Generator().manual_seed(1))
    together = _encoded(Packing([a, b, c]), flat)
    apart = torch.cat([_encoded(Packing([a, b]), flat[:100]), _encoded(Packing([c]), flat[100:])])
    assert torch.equal(together, apart)


def test_sums_add_in_the_order_given() -> None:
    packing = Packing(_segments())
    payloads = [_encoded(packing, _flat(packing, seed), KEY.fold(seed)) for seed in range(3)]
    total = torch.empty(packing.numel)
    packing.decode_sum_into(payloads, total)
    expected = torch.zeros(packing.numel)
    for index, payload in enumerate(payloads):
        part = torch.empty(packing.numel)
        packing.decode_into(payload, part)
        expected = part if index == 0 else expected + part
    assert torch.equal(total, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_buffers_in_16_bits(dtype: torch.dtype) -> None:
    packing = Packing(_segments())
    flat = _flat(packing).to(dtype)
    out = torch.empty_like(flat)
    packing.decode_into(_encoded(packing, flat), out)
    for segment, start in zip(packing.segments, packing.starts, strict=True):
        part = flat[start : start + segment.numel]
        again = decode(encode(part, segment.format, key=KEY.fold(segment.name)))
        assert torch.equal(out[start : start + segment.numel], again)


def test_neighbouring_casts_are_one_call_where_no_byte_moves() -> None:
    fp32, bf16 = parse_format("fp32"), parse_format("bf16")
    norms = [Segment(10, fp32, f"norm{i}") for i in range(100)]
    assert len(Packing(norms)._runs) == 1
    # An odd number of 16-bit values is followed by two bytes of padding: nothing to merge.
    assert len(Packing([Segment(3, bf16, "a"), Segment(3, bf16, "b")])._runs) == 2
    assert len(Packing([Segment(4, bf16, "a"), Segment(3, bf16, "b")])._runs) == 1
    assert len(Packing([Segment(4, bf16, "a", padding=1), Segment(3, bf16, "b")])._runs) == 2
    assert len(Packing([Segment(4, bf16, "a"), Segment(3, fp32, "b")])._runs) == 2


def test_nothing_to_pack() -> None:
    packing = Packing([])
    assert (packing.numel, packing.wire_bytes) == (0, 0)
    packing.encode_into(torch.zeros(0), torch.zeros(0, dtype=torch.uint8), KEY)


def test_wrong_sizes_are_refused() -> None:
    packing = Packing(_segments())
    payload = torch.zeros(packing.wire_bytes, dtype=torch.uint8)
    with pytest.raises(ConfigError, match=rf"this packing takes \({packing.numel},\)"):
        packing.encode_into(torch.zeros(5), payload, KEY)
    with pytest.raises(ConfigError, match=rf"this packing takes \({packing.wire_bytes},\)"):
        packing.decode_into(payload[4:], torch.zeros(packing.numel))
    with pytest.raises(ConfigError, match="both must be 0 or more"):
        Segment(-1, parse_format("fp32"), "p")
    with pytest.raises(ConfigError, match="both must be 0 or more"):
        Segment(1, parse_format("fp32"), "p", padding=-1)
