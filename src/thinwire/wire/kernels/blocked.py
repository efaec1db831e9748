"""What the compiled codecs of all block-wise families share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from thinwire.wire.codec import Codec
from thinwire.wire.kernels.plans import plan_of
from thinwire.wire.kernels.threads import over_blocks
from thinwire.wire.kernels.tiles import Plan
from thinwire.wire.key import Key

__all__ = ["BlockedKernel", "addresses_of"]

Work = Callable[[int, int], object]


class BlockedKernel(Codec):
    """A codec whose loops each serve a range of blocks. A family says which loops."""

    @abstractmethod
    def _encoder(self, x: Tensor, out: Tensor, plan: Plan, key: Key) -> Work:
        """What encodes blocks ``first`` to ``last`` of ``x`` into the payload ``out``."""

    @abstractmethod
    def _decoder(self, payloads: Sequence[Tensor], out: Tensor, plan: Plan) -> Work:
        """What decodes and sums blocks ``first`` to ``last`` of ``payloads`` into ``out``."""

    def _encode(self, x: Tensor, out: Tensor, key: Key) -> None:
        plan = plan_of(self.format, x)
        out.numpy()[plan.codes_end :] = 0
        over_blocks(self._encoder(x, out, plan, key), plan.num_blocks, plan.numel)

    def _decode(self, payload: Tensor, out: Tensor) -> None:
        self._decode_sum([payload], out)

    def _decode_sum(self, payloads: Sequence[Tensor], out: Tensor) -> None:
        plan = plan_of(self.format, out)
        over_blocks(self._decoder(payloads, out, plan), plan.num_blocks, plan.numel)


def addresses_of(payloads: Sequence[Tensor]) -> Any:
    """Where payloads begin, int64. Who calls keeps the tensors."""
    return np.array([payload.data_ptr() for payload in payloads], np.int64)
