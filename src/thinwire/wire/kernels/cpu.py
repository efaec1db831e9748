"""Codecs for CPU tensors that run the compiled loops of this package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from thinwire.formats import WireFormat
from thinwire.wire.codec import Codec
from thinwire.wire.kernels import uniform
from thinwire.wire.kernels.halves import BFLOAT16, FLOAT16, FLOAT32
from thinwire.wire.key import Key
from thinwire.wire.levels import Levels, draw_shift

__all__ = ["UniformKernel", "kernel_codec"]

_KINDS = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.float16: FLOAT16}

# Summing walks over all payloads a stretch at a time, so that the sum stays in a near cache.
_SUM_STRETCH_ELEMENTS = 1 << 17


def kernel_codec(fmt: WireFormat) -> Codec | None:
    """The compiled codec of a format, or None where there is none and the reference serves."""
    if numba.config.DISABLE_JIT:  # a debugging setting of Numba, under which nothing is compiled
        return None
    return UniformKernel(fmt) if fmt.family == "int" else None


class UniformKernel(Codec):
    """The family ``int``."""

    def __init__(self, fmt: WireFormat) -> None:
        super().__init__(fmt)
        levels = Levels.of(fmt)
        self._levels = uniform.UniformLevels(
            top=np.int32(levels.top),
            offset=np.int32(levels.offset),
            span=np.float32(levels.span),
            shift=np.float32(0),
            added=levels.rule.added,
            mask=levels.rule.mask,
            largest=int(np.float32(levels.rule.largest).view(np.int32)),
            narrow=fmt.scale_bytes == 2,
            affine="asym" in fmt.options,
            stochastic="stochastic" in fmt.options,
            key=0,
        )

    def _encode(self, x: Tensor, out: Tensor, key: Key) -> None:
        plan = self._plan(x)
        levels = self._levels._replace(key=key.signed_value)
        payload = out.numpy()
        payload[plan.codes_end :] = 0
        if "shift" in self.format.options:
            levels = levels._replace(shift=np.float32(draw_shift(key, self.format.bits)))
            payload[: plan.scales_at].view(np.float32)[0] = levels.shift
        uniform.encode(_bytes_of(x), payload, plan, levels, 0, plan.num_blocks)

    def _decode(self, payload: Tensor, out: Tensor) -> None:
        plan = self._plan(out)
        levels = self._levels_of(payload, plan)
        uniform.decode(payload.numpy(), _bytes_of(out), plan, levels, False, 0, plan.num_blocks)

    def _decode_sum(self, payloads: Sequence[Tensor], out: Tensor) -> None:
        plan = self._plan(out)
        target = _bytes_of(out)
        sources = [(payload.numpy(), self._levels_of(payload, plan)) for payload in payloads]
        stretch = max(1, _SUM_STRETCH_ELEMENTS // plan.block)
        for first in range(0, plan.num_blocks, stretch):
            last = min(first + stretch, plan.num_blocks)
            for index, (source, levels) in enumerate(sources):
                uniform.decode(source, target, plan, levels, index > 0, first, last)

    def _plan(self, values: Tensor) -> uniform.Plan:
        assert self.format.block is not None
        layout = self.format.layout(values.numel())
        return uniform.Plan(
            numel=values.numel(),
            block=self.format.block,
            kind=_KINDS[values.dtype],
            bits=self.format.bits,
            num_blocks=layout.num_blocks,
            block_bytes=self.format.code_bytes(self.format.block),
            scales_at=layout.scales_at,
            zeros_at=layout.zeros_at,
            codes_at=layout.codes_at,
            codes_end=layout.codes_end,
        )

    def _levels_of(self, payload: Tensor, plan: uniform.Plan) -> uniform.UniformLevels:
        """The levels, with the shift that this payload carries."""
        if plan.scales_at == 0:
            return self._levels
        return self._levels._replace(shift=payload.numpy()[: plan.scales_at].view(np.float32)[0])


def _bytes_of(values: Tensor) -> Any:
    return values.detach().view(torch.uint8).numpy()
