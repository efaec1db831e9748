"""`encode` and `decode`: any shape, and payloads that cannot be wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from thinwire.errors import ConfigError, FormatError
from thinwire.formats import parse_format
from thinwire.wire import Payload, decode, encode


def test_a_payload_remembers_what_it_was() -> None:
    x = torch.randn(3, 5, dtype=torch.float32).to(torch.bfloat16)
    payload = encode(x, "int8/8")
    assert (payload.shape, payload.dtype) == (x.shape, torch.bfloat16)
    assert payload.format == parse_format("int8/8")
    assert decode(payload).shape == (3, 5)


def test_a_text_that_is_no_format_is_refused() -> None:
    with pytest.raises(FormatError, match="unknown format 'zip'"):
        encode(torch.zeros(3), "zip")


def test_bytes_that_do_not_fit_the_shape_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"of shape \(4,\) has 8 bytes, not 12"):
        Payload(
            bytes=torch.zeros(12, dtype=torch.uint8),
            format=parse_format("bf16"),
            shape=torch.Size([4]),
            dtype=torch.float32,
        )


def test_a_zero_dimensional_tensor() -> None:
    assert decode(encode(torch.tensor(2.5), "int8/8")).item() == pytest.approx(2.5, rel=2**-15)


@pytest.mark.parametrize(
    ("field", "odd", "told"),
    [
        ("bytes", b"12345678", r"torch\.frombuffer"),
        ("format", "bf16", "parse_format"),
        ("shape", (4,), r"torch\.Size"),
        ("shape", [4], r"torch\.Size"),
        ("dtype", torch.float64, "one of torch.float32, torch.bfloat16, torch.float16"),
        ("dtype", "float32", "one of torch.float32"),
    ],
)
def test_a_field_of_another_type_is_refused(field: str, odd: Any, told: str) -> None:
    fields: dict[str, Any] = {
        "bytes": torch.zeros(8, dtype=torch.uint8),
        "format": parse_format("bf16"),
        "shape": torch.Size([4]),
        "dtype": torch.float32,
    }
    assert decode(Payload(**fields)).shape == (4,)
    with pytest.raises(ConfigError, match=f"^{field} of a payload (is|are) .*{told}"):
        Payload(**fields | {field: odd})


@pytest.mark.parametrize("text", ["fp32", "bf16", "int8", "sign/8", "topk=0.5", "lowrank=1"])
def test_a_view_that_negates_is_sent_with_its_signs(text: str) -> None:
    x = torch.arange(1.0, 17.0).view(4, 4)
    lazy = torch._neg_view(x)
    assert lazy.is_neg()
    assert torch.equal(decode(encode(lazy, text)), decode(encode(-x, text)))
    part = torch.view_as_complex(torch.stack([x, x], dim=-1)).conj().imag
    assert part.is_neg()
    assert torch.equal(decode(encode(part, text)), decode(encode(-x, text)))
