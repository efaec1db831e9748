"""The codec of family ``int`` for CPU tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from torch import Tensor

from thinwire.formats import WireFormat
from thinwire.wire.kernels import rounding, uniform
from thinwire.wire.kernels.blocked import BlockedKernel, Work, addresses_of
from thinwire.wire.kernels.scales import rule_of
from thinwire.wire.kernels.tiles import Plan
from thinwire.wire.key import Key
from thinwire.wire.levels import Levels, draw_shift

__all__ = ["UniformKernel"]

_NO_NUMBERS = np.empty(0, np.uint8)


class UniformKernel(BlockedKernel):
    """The family ``int`` with even levels."""

    def __init__(self, fmt: WireFormat) -> None:
        super().__init__(fmt)
        levels = Levels.of(fmt)
        affine = "asym" in fmt.options
        bottom = 0 if affine else -levels.top
        self._levels = uniform.UniformLevels(
            codes=rounding.codes_between(bottom, levels.top, levels.offset),
            offset=np.float32(levels.offset),
            rule=rule_of(levels.rule, levels.span),
            unit=np.float32(0.5 if affine else 1.0),
            shift=np.float32(0.0),
            narrow=fmt.scale_bytes == 2,
            affine=affine,
            learned=False,
            numbers=_NO_NUMBERS,
            stochastic="stochastic" in fmt.options,
            key=0,
        )

    def _encoder(self, x: Tensor, out: Tensor, plan: Plan, key: Key) -> Work:
        levels = self._levels
        if levels.stochastic:
            levels = levels._replace(key=key.signed_value)
        if plan.scales_at:
            levels = levels._replace(shift=np.float32(draw_shift(key, self.format.bits)))
            out.numpy()[: plan.scales_at].view(np.float32)[0] = levels.shift
        return partial(uniform.encode, x.data_ptr(), out.data_ptr(), plan, levels)

    def _decoder(self, payloads: Sequence[Tensor], out: Tensor, plan: Plan) -> Work:
        return partial(uniform.decode, addresses_of(payloads), out.data_ptr(), plan, self._levels)
