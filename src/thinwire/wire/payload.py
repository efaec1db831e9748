"""Encode a tensor of any shape, and decode it again."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.errors import ConfigError
from thinwire.formats import WireFormat, parse_format
from thinwire.wire.codec import FLOAT_DTYPES, require_tensor
from thinwire.wire.key import Key
from thinwire.wire.registry import codec_for

__all__ = ["Payload", "decode", "encode"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Payload:
    """One encoded tensor.

    Attributes:
        bytes: uint8, 1-D: what crosses the network.
        format: how the bytes are to be read.
        shape: shape of the tensor.
        dtype: dtype of the tensor: float32, bfloat16 or float16.

    Raises:
        ConfigError: a field has another type, or the bytes are not those of such a tensor.
    """

    bytes: Tensor
    format: WireFormat
    shape: torch.Size
    dtype: torch.dtype

    def __post_init__(self) -> None:
        """Refuse what cannot be the payload of such a tensor."""
        self._check_types()
        needed_bytes = self.format.wire_bytes(self.shape.numel())
        if self.bytes.numel() != needed_bytes:
            raise ConfigError(
                f"a payload in {self.format} of shape {tuple(self.shape)} has {needed_bytes} "
                f"bytes, not {self.bytes.numel()}"
            )

    def _check_types(self) -> None:
        """Refuse fields of other types: a shape read from JSON, or bytes that are no tensor."""
        if not isinstance(self.bytes, Tensor):
            raise ConfigError(
                f"bytes of a payload are a uint8 tensor, not {type(self.bytes).__name__}: pass "
                "torch.frombuffer(bytearray(data), dtype=torch.uint8)"
            )
        if not isinstance(self.format, WireFormat):
            raise ConfigError(
                f"format of a payload is a WireFormat, not {self.format!r}: pass "
                "parse_format('int4/128')"
            )
        if not isinstance(self.shape, torch.Size):
            raise ConfigError(
                f"shape of a payload is a torch.Size, not {self.shape!r}: pass torch.Size((3, 5))"
            )
        if self.dtype not in FLOAT_DTYPES:
            accepted = ", ".join(map(str, FLOAT_DTYPES))
            raise ConfigError(f"dtype of a payload is one of {accepted}, not {self.dtype!r}")


def encode(x: Tensor, fmt: WireFormat | str, *, key: Key | None = None) -> Payload:
    """Encode a tensor.

    Args:
        x: float32, bfloat16 or float16, of any shape and strides, on any device.
        fmt: a format, or its text such as ``"int4/128"``.
        key: names the random numbers, for formats that round at random.

    Raises:
        ConfigError: not a dense tensor, a dtype that no codec takes, or a missing key.
        FormatError: the text is no format, or the format is for another shape.
    """
    require_tensor("x", x)
    if not isinstance(fmt, WireFormat):
        fmt = parse_format(fmt)
    fmt = fmt.for_shape(x.shape)
    payload_bytes = torch.empty(fmt.wire_bytes(x.numel()), dtype=torch.uint8, device=x.device)
    flat = x.detach().resolve_neg().contiguous().view(-1)
    codec_for(fmt, x.device).encode_into(flat, payload_bytes, key)
    return Payload(bytes=payload_bytes, format=fmt, shape=x.shape, dtype=x.dtype)


def decode(payload: Payload) -> Tensor:
    """The tensor of a payload, in the shape and dtype of what was encoded.

    Raises:
        ConfigError: it is no payload.
    """
    if not isinstance(payload, Payload):
        raise ConfigError(
            f"decode takes what encode returned, a Payload, not {type(payload).__name__}; for "
            "bare bytes use Payload(bytes=..., format=..., shape=..., dtype=...)"
        )
    out = torch.empty(payload.shape, dtype=payload.dtype, device=payload.bytes.device)
    codec_for(payload.format, out.device).decode_into(payload.bytes, out.view(-1))
    return out
