"""Which formats the compiled kernels serve."""

from __future__ import annotations

from collections.abc import Callable

from numba.core import config

from thinwire.formats import WireFormat
from thinwire.wire.codec import Codec
from thinwire.wire.kernels.casts import CastKernel
from thinwire.wire.kernels.cpu import UniformKernel
from thinwire.wire.kernels.floats8 import Float8Kernel
from thinwire.wire.kernels.learned import LearnedKernel
from thinwire.wire.kernels.logarithms import LogKernel
from thinwire.wire.kernels.signs import SignKernel
from thinwire.wire.kernels.sparse import SparseKernel

__all__ = ["kernel_codec"]


def _uniform_kernel(fmt: WireFormat) -> Codec:
    return LearnedKernel(fmt) if "levels" in fmt.options else UniformKernel(fmt)


_KERNELS: dict[str, Callable[[WireFormat], Codec]] = {
    "bf16": CastKernel,
    "fp16": CastKernel,
    "e4m3": Float8Kernel,
    "e5m2": Float8Kernel,
    "int": _uniform_kernel,
    "log": LogKernel,
    "sign": SignKernel,
    "topk": SparseKernel,
}


def kernel_codec(fmt: WireFormat) -> Codec | None:
    """The compiled codec of a format, or None where there is none and the reference serves."""
    if config.DISABLE_JIT:  # type: ignore[attr-defined]  # a debugging setting of Numba
        return None
    kernel = _KERNELS.get(fmt.family)
    return None if kernel is None else kernel(fmt)
