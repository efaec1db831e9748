"""Compiling kernels before they are needed, once per machine instead of once per process."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from thinwire.formats import WireFormat
from thinwire.wire.key import Key
from thinwire.wire.registry import codec_for

__all__ = ["prepare"]


def prepare(formats: Iterable[WireFormat], dtypes: Iterable[torch.dtype]) -> None:
    """Encode, decode and sum one element in every format on a CPU.

    The first call on a machine compiles for several seconds; later processes load the result.

    Args:
        formats: what will travel.
        dtypes: of the tensors that will be encoded.
    """
    for fmt in formats:
        codec = codec_for(fmt, torch.device("cpu"))
        for dtype in dtypes:
            values = torch.ones(1, dtype=dtype)
            payload = torch.empty(fmt.wire_bytes(1), dtype=torch.uint8)
            codec.encode_into(values, payload, Key())
            codec.decode_into(payload, values)
            codec.decode_sum_into([payload], torch.empty(1))
