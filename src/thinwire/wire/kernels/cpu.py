"""The codec of family ``int`` for CPU tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from thinwire.formats import WireFormat
from thinwire.wire.codec import Codec
from thinwire.wire.kernels import rounding, uniform
from thinwire.wire.kernels.plans import plan_of
from thinwire.wire.key import Key
from thinwire.wire.levels import Levels, draw_shift

__all__ = ["UniformKernel"]


class UniformKernel(Codec):
    """The family ``int``."""

    def __init__(self, fmt: WireFormat) -> None:
        super().__init__(fmt)
        levels = Levels.of(fmt)
        affine = "asym" in fmt.options
        bottom = 0 if affine else -levels.top
        self._levels = uniform.UniformLevels(
            codes=rounding.codes_between(bottom, levels.top, levels.offset),
            offset=np.float32(levels.offset),
            span=np.float32(levels.span),
            unit=np.float32(0.5 if affine else 1.0),
            shift=np.float32(0.0),
            added=levels.rule.added,
            mask=levels.rule.mask,
            largest=int(np.float32(levels.rule.largest).view(np.int32)),
            narrow=fmt.scale_bytes == 2,
            affine=affine,
            stochastic="stochastic" in fmt.options,
            key=0,
        )

    def _encode(self, x: Tensor, out: Tensor, key: Key) -> None:
        plan = plan_of(self.format, x)
        levels = self._levels
        payload = out.numpy()
        payload[plan.codes_end :] = 0
        if levels.stochastic:
            levels = levels._replace(key=key.signed_value)
        if plan.scales_at:
            levels = levels._replace(shift=np.float32(draw_shift(key, self.format.bits)))
            payload[: plan.scales_at].view(np.float32)[0] = levels.shift
        uniform.encode(x.data_ptr(), out.data_ptr(), plan, levels, 0, plan.num_blocks)

    def _decode(self, payload: Tensor, out: Tensor) -> None:
        self._decode_sum([payload], out)

    def _decode_sum(self, payloads: Sequence[Tensor], out: Tensor) -> None:
        plan = plan_of(self.format, out)
        addresses = np.array([payload.data_ptr() for payload in payloads], np.int64)
        shifts = np.zeros(len(payloads), np.float32)
        if plan.scales_at:
            for index, payload in enumerate(payloads):
                shifts[index] = payload.numpy()[: plan.scales_at].view(np.float32)[0]
        uniform.decode(addresses, shifts, out.data_ptr(), plan, self._levels, 0, plan.num_blocks)
