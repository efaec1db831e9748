"""What a codec cannot take is refused by name, with what to pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from thinwire.errors import ConfigError, FormatError
from thinwire.formats import parse_format
from thinwire.wire import Key, codec_for, decode, encode
from thinwire.wire.feedback import ResidualPolicy
from wire_cases import CPU

X = torch.ones(8)


@pytest.mark.parametrize("odd", [[1.0], 1.0, None, "int4", np.ones(3)])
def test_what_is_no_tensor_is_refused(odd: Any) -> None:
    with pytest.raises(ConfigError, match=r"x must be a torch\.Tensor, not .*torch\.as_tensor"):
        encode(odd, "int8")
    codec = codec_for(parse_format("bf16"), CPU)
    payload = encode(X, "bf16").bytes
    with pytest.raises(ConfigError, match=r"must be a torch\.Tensor"):
        codec.encode_into(odd, payload)
    with pytest.raises(ConfigError, match=r"must be a torch\.Tensor"):
        codec.decode_into(odd, X.clone())
    with pytest.raises(ConfigError, match=r"must be a torch\.Tensor"):
        codec.decode_sum_into([payload, odd], X.clone())


# torch says that these are new
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_a_sparse_tensor_is_refused(layout: str) -> None:
    dense = torch.eye(4)
    sparse = dense.to_sparse() if layout == "coo" else dense.to_sparse_csr()
    for text in ("fp32", "int8", "topk=0.1", "lowrank=2"):
        with pytest.raises(ConfigError, match=r"x is a sparse tensor: pass x\.to_dense\(\)"):
            encode(sparse, text)


# torch says that these are new
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_nested_tensor_is_refused(layout: torch.layout) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)
    for text in ("fp32", "int8", "topk=0.1", "lowrank=2"):
        with pytest.raises(ConfigError, match=r"x is a nested tensor: pass one of x\.unbind\(\)"):
            encode(nested, text)


def test_a_view_that_negates_has_no_memory_to_read_or_write() -> None:
    codec, payload = codec_for(parse_format("int8"), CPU), encode(X, "int8").bytes
    lazy = torch._neg_view(X.clone())
    with pytest.raises(ConfigError, match=r"x is a view that negates: pass x\.resolve_neg\(\)"):
        codec.encode_into(lazy, payload)
    with pytest.raises(ConfigError, match="out is a view that negates"):
        codec.decode_into(payload, lazy)


@pytest.mark.parametrize("odd", [None, 4, ["int4"], torch.float32])
def test_what_is_no_format_is_refused(odd: Any) -> None:
    with pytest.raises(FormatError, match="a format is a text such as 'int4/128'"):
        encode(X, odd)


def test_low_rank_of_another_shape_is_refused() -> None:
    with pytest.raises(FormatError, match=r"lowrank=4/3x3 is for one shape.*\(2, 4\)"):
        encode(X.view(2, 4), "lowrank=4/3x3")


@pytest.mark.parametrize("odd", [3, "a", (0, 1)])
@pytest.mark.parametrize("text", ["int8", "int8+stochastic"])
def test_what_is_no_key_is_refused(text: str, odd: Any) -> None:
    with pytest.raises(ConfigError, match="a key is a Key"):
        encode(X, text, key=odd)


@pytest.mark.parametrize("odd", [X, X.to(torch.uint8), None, b"abc", "int4"])
def test_what_is_no_payload_is_refused(odd: Any) -> None:
    with pytest.raises(ConfigError, match="decode takes what encode returned"):
        decode(odd)


@pytest.mark.parametrize("part", ["seed", "step", "rank", "salt"])
@pytest.mark.parametrize("odd", ["a", 1.0, None, torch.tensor(1)])
def test_a_part_of_a_key_is_a_whole_number(part: str, odd: Any) -> None:
    with pytest.raises(ConfigError, match=f"{part} of a key is a whole number"):
        Key(**{part: odd})


@pytest.mark.parametrize("odd", [None, 1.0, ("a",)])
def test_the_parameter_of_a_key_is_a_name_or_a_number(odd: Any) -> None:
    with pytest.raises(ConfigError, match="parameter of a key"):
        Key(parameter=odd)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"format": "bf16"}, "parse_format"),
        ({"format": None}, "parse_format"),
        ({"format": parse_format("topk=0.1")}, "not in topk=0.1"),
        ({"format": parse_format("int2")}, "not in int2/128"),
        ({"format": parse_format("int8+asym")}, r"not in int8/128\+asym"),
        ({"format": parse_format("fp16")}, "not in fp16"),
        ({"average": float("nan")}, "average"),
        ({"average": 1.0}, "average"),
        ({"average": -0.1}, "average"),
        ({"average": "0.5"}, "average"),
        ({"reset_every": -1}, "reset_every"),
        ({"reset_every": 1}, "reset_every"),
        ({"reset_every": 2.0}, "reset_every"),
    ],
)
def test_residuals_are_kept_in_a_way_that_there_is(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        ResidualPolicy(**fields)
