"""Numba kernels for CPUs."""

from __future__ import annotations

from thinwire.formats import WireFormat
from thinwire.wire.codec import Codec


def kernel_codec(fmt: WireFormat) -> Codec | None:
    return None
