"""Error feedback: what a codec lost of one payload is added to the next one.

    carried  = x + residual
    payload  = encode(carried)
    residual = carried - decode(payload)

so that after any number of payloads ``sum of decoded + residual == sum of x`` to fp32 rounding. A
biased codec then loses nothing for good, it only sends it later (Karimireddy et al., arXiv
1901.09847, algorithm 2).

Note: whose residual. Residuals are kept by parameter and by part: the part says which payload of
the parameter it is, such as the one for rank 3. They do not depend on how parameters share a
buffer, and a parameter that is absent for a while (frozen, or unused) keeps its residual.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor

from thinwire.errors import StateError
from thinwire.wire.codec import FLOAT_DTYPES
from thinwire.wire.key import Key
from thinwire.wire.packing import Packing, Segment

__all__ = ["NO_FEEDBACK", "Feedback", "NoFeedback", "Residuals"]

_CAST_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Feedback(Protocol):
    """Encodes a flat buffer, with or without a memory of what was lost before."""

    def encode_into(self, packing: Packing, flat: Tensor, out: Tensor, key: Key, part: str) -> None:
        """Encode as `Packing.encode_into` does.

        Args:
            packing: how ``flat`` becomes bytes.
            flat: values, 1-D, ``packing.numel`` elements; left as they are.
            out: uint8, ``packing.wire_bytes`` bytes.
            key: names the random numbers.
            part: which of a parameter's payloads this is; the same in every step.
        """


class NoFeedback:
    """Remembers nothing: what a codec loses is lost."""

    def encode_into(self, packing: Packing, flat: Tensor, out: Tensor, key: Key, part: str) -> None:  # noqa: ARG002 - the part names a residual, and there is none
        """Encode ``flat`` as it is."""
        packing.encode_into(flat, out, key)


NO_FEEDBACK = NoFeedback()


class Residuals:
    """Adds to every payload what the one before it lost.

    A residual begins at zero, with the first payload of its part. Where a value or a payload is not
    finite the residual stays as it was, so that a step which is skipped for a NaN pollutes none. A
    format that holds the buffer's dtype exactly loses nothing and gets no residual.

    Memory: ``dtype.itemsize`` bytes per element that this rank encodes, and two fp32 copies of one
    buffer while it is encoded.

    Args:
        dtype: how residuals are kept between steps: fp32, or bf16 for half the memory, which
            rounds each of them to 8 significant bits.

    Raises:
        StateError: ``dtype`` is neither.
    """

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        if dtype not in (torch.float32, torch.bfloat16):
            raise StateError(
                f"residuals are kept in torch.float32 or torch.bfloat16, not in {dtype}"
            )
        self.dtype = dtype
        self._residuals: dict[tuple[str, str], Tensor] = {}

    @property
    def held_bytes(self) -> int:
        """Bytes of all residuals."""
        return sum(residual.nbytes for residual in self._residuals.values())

    def encode_into(self, packing: Packing, flat: Tensor, out: Tensor, key: Key, part: str) -> None:
        """Encode ``flat`` and the residuals of its parameters' ``part``, and renew these.

        Raises:
            StateError: a parameter has another size than when its residual was made.
        """
        places = [
            (start, self._residual(segment, part, flat.device))
            for segment, start in _lossy(packing, flat.dtype)
        ]
        if not places:
            packing.encode_into(flat, out, key)
            return
        carried = flat.to(torch.float32, copy=True)
        for start, residual in places:
            carried[start : start + len(residual)].add_(residual)
        packing.encode_into(carried, out, key)
        decoded = torch.empty_like(carried)
        packing.decode_into(out, decoded)
        lost = carried.sub_(decoded)
        for start, residual in places:
            _renew(residual, lost[start : start + len(residual)])

    def state(self) -> dict[str, Tensor]:
        """All residuals, by ``"parameter/part"``; the tensors themselves, not copies."""
        return {f"{name}/{part}": tensor for (name, part), tensor in self._residuals.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what :meth:`state` returned, on the device where the gradients are.

        Raises:
            StateError: an entry is no flat tensor of floats called ``"parameter/part"``.
        """
        loaded: dict[tuple[str, str], Tensor] = {}
        for entry, tensor in state.items():
            name, slash, part = entry.rpartition("/")
            if not slash or tensor.dim() != 1 or tensor.dtype not in FLOAT_DTYPES:
                raise StateError(
                    f"{entry!r} ({tensor.dtype}, shape {tuple(tensor.shape)}) is no residual: "
                    "pass what Residuals.state() returned"
                )
            loaded[name, part] = tensor.detach().to(self.dtype, copy=True)
        self._residuals = loaded

    def _residual(self, segment: Segment, part: str, device: torch.device) -> Tensor:
        residual = self._residuals.get((segment.name, part))
        if residual is None:
            residual = torch.zeros(segment.numel, dtype=self.dtype, device=device)
            self._residuals[segment.name, part] = residual
        if len(residual) != segment.numel:
            raise StateError(
                f"parameter {segment.name} has {segment.numel} elements to send, but its residual "
                f"has {len(residual)}: it was resized, or the number of ranks changed; attach "
                "compression again"
            )
        return residual


def _lossy(packing: Packing, dtype: torch.dtype) -> Iterator[tuple[Segment, int]]:
    """The segments whose format does not hold every value of ``dtype``, and where they start."""
    for segment, start in zip(packing.segments, packing.starts, strict=True):
        written = _CAST_DTYPES.get(segment.format.family)
        if segment.numel and written not in (dtype, torch.float32):
            yield segment, start


def _renew(residual: Tensor, lost: Tensor) -> None:
    """Keep what was lost, but where that is not finite keep the residual as it is."""
    # a sum tells at the cost of one pass; asking an accelerator would make it wait
    if lost.device.type == "cpu" and math.isfinite(lost.sum().item()):
        residual.copy_(lost)
    else:
        residual.copy_(torch.where(lost.isfinite(), lost, residual))
