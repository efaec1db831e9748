"""One residual: what one payload of a parameter lost, kept until the next one.

    kept     the residual, in the format that residuals are kept in
    before   what it was before the step that is under way, so that a step can be taken back

A step may renew a residual several times, once for each micro-batch; ``before`` is from before the
first of them. The two change places, so that renewing copies nothing.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from thinwire.errors import StateError
from thinwire.formats import WireFormat
from thinwire.wire.codec import FLOAT_DTYPES
from thinwire.wire.registry import codec_for

__all__ = ["Residual"]

_CAST_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Residual:
    """A residual, zero to begin with.

    Args:
        numel: its elements.
        fmt: how it is kept: fp32 or bf16 as a tensor of that dtype, anything else as a payload.
        device: where it is kept.
        undoable: keep what it was before the step under way, in as many bytes.
    """

    def __init__(
        self, numel: int, fmt: WireFormat, device: torch.device, *, undoable: bool
    ) -> None:
        self.numel = numel
        self._codec = codec_for(fmt, device)
        dtype = _CAST_DTYPES.get(fmt.family)
        self._is_payload = dtype is None
        size, dtype = (numel, dtype) if dtype else (fmt.wire_bytes(numel), torch.uint8)
        self._kept = torch.empty(size, dtype=dtype, device=device)
        self._write(torch.zeros(numel, device=device))
        self._undoable = undoable
        self._before: Tensor | None = None
        self._step = -1

    @property
    def stored(self) -> Tensor:
        """The residual as it is kept: 1-D, floats or the bytes of a payload; not a copy."""
        return self._kept

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes."""
        return self._kept.nbytes + (0 if self._before is None else self._before.nbytes)

    def values(self) -> Tensor:
        """The residual: 1-D floats. Not a copy where it is kept as floats: read only."""
        if not self._is_payload:
            return self._kept
        values = torch.empty(self.numel, dtype=torch.float32, device=self._kept.device)
        self._codec.decode_into(self._kept, values)
        return values

    def renew(self, lost: Tensor, average: float, step: int) -> None:
        """Take in what a payload lost; where that is not finite the residual stays as it is.

        Args:
            lost: fp32, 1-D.
            average: weight of the old residual in the new one; the rest is the weight of ``lost``.
            step: the step under way, as counted by whoever may undo it.
        """
        # a sum tells at the cost of one pass; asking an accelerator would make it wait
        if lost.device.type != "cpu" or not math.isfinite(lost.sum().item()):
            lost = torch.where(lost.isfinite(), lost, self.values())
        if average:
            lost = torch.lerp(lost, self.values().to(lost.dtype), average)
        self._change(lost, step)

    def clear(self, step: int) -> None:
        """Return to zero."""
        self._change(torch.zeros(self.numel, device=self._kept.device), step)

    def undo(self, step: int) -> None:
        """Become what it was before a step, if that step changed it."""
        if self._before is not None and self._step == step:
            self._kept, self._before, self._step = self._before, self._kept, -1

    def load(self, stored: Tensor) -> None:
        """Continue from what :attr:`stored` was, here or under another format for residuals.

        Raises:
            StateError: it is no residual of this parameter, or not kept as floats.
        """
        if stored.dtype == torch.uint8:
            fits = self._is_payload and stored.shape == self._kept.shape
        else:
            fits = stored.dtype in FLOAT_DTYPES and stored.shape == (self.numel,)
        if not fits:
            raise StateError(
                f"{stored.dtype} of shape {tuple(stored.shape)} is no residual of {self.numel} "
                f"elements in {self._codec.format}: the parameter was resized, the number of ranks "
                "changed, or the recipe's residual is not the one it was saved under"
            )
        if stored.dtype == torch.uint8:
            self._kept.copy_(stored)
        else:
            self._write(stored.detach().to(self._kept.device, torch.float32))

    def _change(self, values: Tensor, step: int) -> None:
        if self._undoable and self._step != step:
            spare = torch.empty_like(self._kept) if self._before is None else self._before
            self._kept, self._before, self._step = spare, self._kept, step
        self._write(values)

    def _write(self, values: Tensor) -> None:
        if self._is_payload:
            self._codec.encode_into(values, self._kept)
        else:
            self._kept.copy_(values)
