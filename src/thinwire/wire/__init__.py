"""Tensors to payloads and back. This floor knows formats and codecs, and no ranks.

    payload = encode(x, "int4/128")        # any shape, any device
    x_again = decode(payload)

`codec_for` gives the low-level codec that works in buffers of the caller; `Packing` encodes the
parameters of a flat buffer one by one; `Key` names the random numbers of stochastic formats.
"""

from thinwire.wire.codec import Codec
from thinwire.wire.key import Key
from thinwire.wire.packing import Packing, Segment
from thinwire.wire.payload import Payload, decode, encode
from thinwire.wire.registry import codec_for, reference_codec

__all__ = [
    "Codec",
    "Key",
    "Packing",
    "Payload",
    "Segment",
    "codec_for",
    "decode",
    "encode",
    "reference_codec",
]
