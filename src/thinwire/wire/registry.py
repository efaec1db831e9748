"""Which codec serves a format on a device."""

from __future__ import annotations

from functools import cache

import torch

from thinwire.formats import WireFormat
from thinwire.wire.codec import Codec
from thinwire.wire.reference.casts import CastReference
from thinwire.wire.reference.float8 import Float8Reference
from thinwire.wire.reference.logarithmic import LogReference
from thinwire.wire.reference.lowrank import LowRankReference
from thinwire.wire.reference.sign import SignReference
from thinwire.wire.reference.sparse import SparseReference
from thinwire.wire.reference.uniform import uniform_reference

__all__ = ["codec_for", "reference_codec"]

_REFERENCES = {
    "fp32": CastReference,
    "bf16": CastReference,
    "fp16": CastReference,
    "e4m3": Float8Reference,
    "e5m2": Float8Reference,
    "int": uniform_reference,
    "log": LogReference,
    "sign": SignReference,
    "topk": SparseReference,
    "lowrank": LowRankReference,
}


@cache
def reference_codec(fmt: WireFormat) -> Codec:
    """The codec in plain torch, which works on every device."""
    return _REFERENCES[fmt.family](fmt)


def codec_for(fmt: WireFormat, device: torch.device) -> Codec:
    """The fastest codec for a format on a device.

    On a CPU the compiled loops of `thinwire.wire.kernels` serve the formats that they cover, on an
    accelerator torch.compile fuses the reference; everything else goes through the reference as it
    is. All write the same bytes, and none ever sends a tensor uncompressed instead.
    """
    return _codec_for_type(fmt, device.type)


@cache
def _codec_for_type(fmt: WireFormat, device_type: str) -> Codec:
    if device_type == "cpu":
        from thinwire.wire.kernels import selection  # compiled code: loaded when first needed

        kernel = selection.kernel_codec(fmt)
        return kernel or reference_codec(fmt)
    from thinwire.wire.kernels import accelerator  # the same

    return accelerator.accelerated(_REFERENCES[fmt.family](fmt))
