"""`encode` and `decode`: any shape, and payloads that cannot be wrong."""

from __future__ import annotations

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
