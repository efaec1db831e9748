"""The families ``fp32``, ``bf16`` and ``fp16``: each element on its own, little-endian."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire.wire.codec import Codec
from thinwire.wire.key import Key
from thinwire.wire.reference.narrow import narrow_into, stretches

__all__ = ["CastReference"]

_WIRE_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class CastReference(Codec):
    """Rounds to nearest even. A finite value beyond the range becomes the largest finite one."""

    def _encode(self, x: Tensor, out: Tensor, key: Key) -> None:
        del key  # a cast draws no random numbers
        codes_end = self.format.layout(x.numel()).codes_end
        out[codes_end:].zero_()
        narrow_into(x, self._elements(out, x.numel()))

    def _decode(self, payload: Tensor, out: Tensor) -> None:
        elements = self._elements(payload, out.numel())
        if out.dtype == torch.float32:  # every number fits, and NaN is the one that encoding wrote
            out.copy_(elements)
        else:
            narrow_into(elements, out)

    def _decode_sum(self, payloads: Sequence[Tensor], out: Tensor) -> None:
        elements = [stretches(self._elements(payload, out.numel())) for payload in payloads]
        # Widening a stretch first is many times faster than adding numbers of two types; into one
        # place, for an allocator that gave each stretch another would hold several at once.
        is_wide = self._wire_dtype == torch.float32
        place = torch.empty_like(stretches(out)[0][: 0 if is_wide else None])
        for total, first, *others in zip(stretches(out), *elements, strict=True):
            total.copy_(first)
            for other in others:
                total.add_(other if is_wide else place[: other.numel()].copy_(other))

    @property
    def _wire_dtype(self) -> torch.dtype:
        return _WIRE_DTYPES[self.format.family]

    def _elements(self, payload: Tensor, numel: int) -> Tensor:
        """The payload's numbers as a view, without the zero bytes at its end."""
        return payload[: self.format.code_bytes(numel)].view(self._wire_dtype)
