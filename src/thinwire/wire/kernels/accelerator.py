"""Codecs for accelerators: the reference, with the arithmetic of many blocks in one kernel.

torch.compile turns the some twenty operations of an encode into one pass over memory, and as many
of a decode. The products of codes and scales are exact (see `thinwire.wire.scales`), so it makes no
difference where the compiler fuses a product with a sum: what is decoded has the same bits as
everywhere else.
"""

from __future__ import annotations

import importlib.util

from thinwire.wire.codec import Codec
from thinwire.wire.reference.blocked import BlockedReference

__all__ = ["accelerated", "can_compile"]

# A percentile needs a selection and learned levels a histogram: neither is one pass.
_NOT_ONE_PASS = frozenset({"clip", "levels"})


def can_compile(codec: Codec) -> bool:
    """Whether torch.compile makes one kernel of this codec."""
    return isinstance(codec, BlockedReference) and not codec.format.options & _NOT_ONE_PASS


def accelerated(codec: Codec) -> Codec:
    """The codec itself, compiled where that is possible.

    Without the compiler's backend for accelerators (Triton) the operations run one by one. That is
    slower and compresses just as well.
    """
    if can_compile(codec) and importlib.util.find_spec("triton") is not None:
        assert isinstance(codec, BlockedReference)
        codec.fuse()
    return codec
