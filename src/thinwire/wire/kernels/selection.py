"""Which formats the compiled kernels serve."""

from __future__ import annotations

from numba.core import config

from thinwire.formats import WireFormat
from thinwire.wire.codec import Codec
from thinwire.wire.kernels import cpu
from thinwire.wire.kernels.casts import CastKernel

__all__ = ["kernel_codec"]

# What the tiles of family ``int`` do not do.
_REFERENCE_ONLY = frozenset({"clip", "levels", "hadamard"})


def kernel_codec(fmt: WireFormat) -> Codec | None:
    """The compiled codec of a format, or None where there is none and the reference serves."""
    if config.DISABLE_JIT:  # type: ignore[attr-defined]  # a debugging setting of Numba
        return None
    if fmt.family == "int":
        return None if fmt.options & _REFERENCE_ONLY else cpu.kernel_codec(fmt)
    return CastKernel(fmt) if fmt.family in ("bf16", "fp16") else None
