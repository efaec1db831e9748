"""The codec's door: what it takes, and what it says to everything else."""

from __future__ import annotations

import pytest
import torch

from thinwire.errors import ConfigError
from thinwire.formats import parse_format
from thinwire.wire import Key, codec_for, encode
from thinwire.wire.factors import add_outer_products
from wire_cases import CPU, DTYPES

INT4 = codec_for(parse_format("int4/8"), CPU)
BYTES = INT4.format.wire_bytes(16)


def _bytes(size: int = BYTES) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.uint8)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.bool, torch.complex64])
def test_other_dtypes_are_refused_with_those_that_are_taken(dtype: torch.dtype) -> None:
    x = torch.zeros(16, dtype=dtype)
    with pytest.raises(ConfigError, match=r"convert it to one of torch\.float32, torch\.bfloat16"):
        INT4.encode_into(x, _bytes())
    with pytest.raises(ConfigError, match="convert it to one of"):
        INT4.decode_into(_bytes(), x)
    with pytest.raises(ConfigError, match="convert it to one of"):
        encode(x, "int4/8")


def test_tensors_must_be_flat() -> None:
    with pytest.raises(ConfigError, match="must be 1-D and contiguous"):
        INT4.encode_into(torch.zeros(4, 4), _bytes())
    with pytest.raises(ConfigError, match=r"pass x\.contiguous\(\)\.view\(-1\)"):
        INT4.encode_into(torch.zeros(32)[::2], _bytes())
    with pytest.raises(ConfigError, match="out must be a contiguous 1-D uint8 tensor"):
        INT4.encode_into(torch.zeros(16), _bytes().view(2, -1))
    with pytest.raises(ConfigError, match=r"not torch\.int8"):
        INT4.decode_into(_bytes().view(torch.int8), torch.zeros(16))


@pytest.mark.parametrize("size", [0, BYTES - 4, BYTES - 1, BYTES + 4])
def test_a_payload_of_another_length_is_refused(size: int) -> None:
    message = f"has {size} bytes, but 16 elements in int4/8 take {BYTES}"
    with pytest.raises(ConfigError, match=message):
        INT4.encode_into(torch.zeros(16), _bytes(size))
    with pytest.raises(ConfigError, match=message):
        INT4.decode_into(_bytes(size), torch.zeros(16))
    with pytest.raises(ConfigError, match=r"payloads\[1\] has"):
        INT4.decode_sum_into([_bytes(), _bytes(size)], torch.zeros(16))


def test_a_payload_in_the_middle_of_nowhere_is_refused() -> None:
    memory = _bytes(BYTES + 2)
    with pytest.raises(ConfigError, match="starts 2 bytes into its storage"):
        INT4.encode_into(torch.zeros(16), memory[2:])


def test_a_payload_on_another_device_is_refused() -> None:
    with pytest.raises(ConfigError, match="move them to the same device"):
        INT4.decode_into(_bytes().to("meta"), torch.zeros(16))


def test_random_rounding_needs_a_key() -> None:
    for text in ("int4/8+stochastic", "int4/8+shift", "e4m3+stochastic"):
        codec = codec_for(parse_format(text), CPU)
        payload = _bytes(codec.format.wire_bytes(16))
        with pytest.raises(ConfigError, match=r"needs a key: pass key=Key\(seed, step"):
            codec.encode_into(torch.zeros(16), payload)
        codec.encode_into(torch.zeros(16), payload, Key())


def test_sums_are_kept_in_float32_and_need_a_payload() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        with pytest.raises(ConfigError, match=r"sums are kept in torch\.float32"):
            INT4.decode_sum_into([_bytes()], torch.zeros(16, dtype=dtype))
    with pytest.raises(ConfigError, match="needs at least one payload"):
        INT4.decode_sum_into([], torch.zeros(16))


def test_nothing_at_all_is_fine() -> None:
    assert INT4.format.wire_bytes(0) == 0
    for dtype in DTYPES:
        empty = torch.zeros(0, dtype=dtype)
        INT4.encode_into(empty, _bytes(0))
        INT4.decode_into(_bytes(0), empty)
    INT4.decode_sum_into([_bytes(0)], torch.zeros(0))


def test_inputs_are_left_as_they_were() -> None:
    x = torch.randn(16, requires_grad=True)
    before = x.detach().clone()
    payload = _bytes()
    INT4.encode_into(x.detach(), payload)
    kept = payload.clone()
    INT4.decode_into(payload, torch.zeros(16))
    INT4.decode_sum_into([payload, payload], torch.zeros(16))
    assert torch.equal(x.detach(), before)
    assert torch.equal(payload, kept)


def test_a_tensor_that_requires_grad_can_be_encoded() -> None:
    assert encode(torch.randn(16, requires_grad=True), "int4/8").bytes.numel() == BYTES


@pytest.mark.parametrize(
    "text", ["fp32", "bf16", "int4/8", "int4/8+levels", "log4/8", "sign/8", "e4m3/8", "topk=0.5"]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_autograd_hears_of_what_a_kernel_writes(text: str, dtype: torch.dtype) -> None:
    codec = codec_for(parse_format(text), CPU)
    payload = encode(torch.randn(16), text).bytes
    for write in ("decode", "sum"):
        saved = torch.ones(16, dtype=torch.float32 if write == "sum" else dtype)
        loss = (torch.ones_like(saved, requires_grad=True) * saved).sum()
        if write == "sum":
            codec.decode_sum_into([payload], saved)
        else:
            codec.decode_into(payload, saved)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()  # type: ignore[no-untyped-call]
    before = payload._version
    codec.encode_into(torch.randn(16), payload)
    assert payload._version > before


def test_autograd_hears_of_outer_products() -> None:
    total, factor = torch.ones(4, 4), torch.ones(1, 4)
    loss = (torch.ones_like(total, requires_grad=True) * total).sum()
    add_outer_products(total, factor, factor)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()  # type: ignore[no-untyped-call]


def test_kernels_write_where_nothing_is_recorded() -> None:
    payload, expected = encode(torch.ones(16), "int4/8"), torch.empty(16)
    INT4.decode_into(payload.bytes, expected)
    with torch.inference_mode():
        out = torch.empty(16)
        INT4.decode_into(payload.bytes, out)
    assert torch.equal(out, expected)
