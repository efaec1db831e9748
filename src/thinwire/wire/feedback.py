"""Error feedback: what a codec lost of one payload is added to the next one.

    carried  = x + residual
    payload  = encode(carried)
    residual = carried - decode(payload)

so that after any number of payloads ``sum of decoded + residual == sum of x`` to fp32 rounding. A
biased codec then loses nothing for good, it only sends it later (Karimireddy et al., arXiv
1901.09847, algorithm 2). Three variants give up some of that for memory or for calm: residuals in
16 or 8 bits, a moving average of what was lost, and a return to zero now and then (LoCo, arXiv
2407.04480).

Note: whose residual. Residuals are kept by parameter and by part: the part says which payload of
the parameter it is, such as the one for rank 3. They do not depend on how parameters share a
buffer, and a parameter that is absent for a while (frozen, or unused) keeps its residual.

Note: steps taken back. A NaN on one rank lets all ranks skip a step, when those without a NaN have
renewed their residuals already. What was sent then was not applied, so a residual must become what
it was before the step: `Residuals.undo`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from thinwire.errors import ConfigError, StateError
from thinwire.formats import WireFormat, parse_format
from thinwire.wire.codec import FLOAT_DTYPES, Codec
from thinwire.wire.key import Key
from thinwire.wire.packing import Packing, Run, Segment
from thinwire.wire.residual import Residual

__all__ = [
    "NO_FEEDBACK",
    "Feedback",
    "NoFeedback",
    "OpenFeedback",
    "ResidualPolicy",
    "Residuals",
]

_CAST_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_FP32 = parse_format("fp32")


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


class OpenFeedback(Feedback, Protocol):
    """Feedback that also serves whoever encodes a parameter in a way of its own."""

    def add_residual(self, name: str, part: str, values: Tensor, step: int) -> None:
        """Add what was lost before.

        Args:
            name: the parameter's full name in the model.
            part: which of its payloads this is; the same in every step.
            values: fp32, 1-D; changed in place.
            step: as in the key of the step's random numbers.
        """

    def keep_lost(self, name: str, part: str, lost: Tensor) -> None:
        """Remember what was lost of ``values`` as :meth:`add_residual` left them: fp32, 1-D."""


class NoFeedback:
    """Remembers nothing: what a codec loses is lost."""

    def encode_into(self, packing: Packing, flat: Tensor, out: Tensor, key: Key, part: str) -> None:  # noqa: ARG002 - the part names a residual, and there is none
        """Encode ``flat`` as it is."""
        packing.encode_into(flat, out, key)

    def add_residual(self, name: str, part: str, values: Tensor, step: int) -> None:
        """Leave the values as they are."""

    def keep_lost(self, name: str, part: str, lost: Tensor) -> None:
        """Forget what was lost."""


NO_FEEDBACK = NoFeedback()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualPolicy:
    """How residuals are kept.

    Attributes:
        format: in which format between steps: ``fp32``, ``bf16`` or ``int8/B``.
        average: weight of the old residual in the new one, from 0 to below 1. At 0 the residual is
            what was lost, in full; above, ``average * old + (1 - average) * lost``.
        reset_every: the payloads of steps that this divides start from a residual of zero; 0: none.
        undoable: keep what residuals were before the step under way, so that `Residuals.undo` can
            take it back; costs as much memory again.

    Raises:
        ConfigError: a field has another type, or is out of range.
    """

    format: WireFormat = _FP32
    average: float = 0.0
    reset_every: int = 0
    undoable: bool = False

    def __post_init__(self) -> None:
        """Refuse what residuals could not be kept by."""
        if not isinstance(self.format, WireFormat):
            raise ConfigError(
                f"residuals are kept in a format, such as parse_format('bf16'), not {self.format!r}"
            )
        if not self.format.keeps_residuals:
            raise ConfigError(
                f"residuals are kept in fp32, bf16 or int8/BLOCK, not in {self.format}: what the "
                "format of a residual loses, no later step makes up for"
            )
        if not isinstance(self.average, int | float) or not 0 <= self.average < 1:
            raise ConfigError(f"average is a number from 0 to below 1, not {self.average!r}")
        if not isinstance(self.reset_every, int) or self.reset_every < 0 or self.reset_every == 1:
            raise ConfigError(
                f"reset_every is 0, or 2 steps or more, not {self.reset_every!r}: after every step "
                "nothing would be carried over"
            )


class Residuals:
    """Adds to every payload what the one before it lost.

    A residual begins at zero, with the first payload of its part. Where a value or a payload is not
    finite the residual stays as it was, so that a step which is skipped for a NaN pollutes none. A
    format that holds the buffer's dtype exactly loses nothing and gets no residual.

    Memory: ``policy.format.wire_bytes`` of every piece that this rank encodes, twice that if the
    policy is undoable, and two fp32 copies of one piece while it is encoded, three if it averages.

    Args:
        policy: how residuals are kept.
    """

    def __init__(self, policy: ResidualPolicy | None = None) -> None:
        self.policy = policy or ResidualPolicy()
        self._residuals: dict[tuple[str, str], Residual] = {}
        self._loaded: dict[tuple[str, str], Tensor] = {}
        self._step = 0

    @property
    def held_bytes(self) -> int:
        """Bytes of all residuals, and of what they were before the step under way."""
        return sum(residual.nbytes for residual in self._residuals.values())

    def encode_into(self, packing: Packing, flat: Tensor, out: Tensor, key: Key, part: str) -> None:
        """Encode ``flat`` and the residuals of its parameters' ``part``, and renew these.

        Raises:
            StateError: a parameter has another size than when its residual was made.
        """
        for run, codec in packing.codecs(flat.device):
            values, payload = run.values(flat), run.bytes_of(out)
            if _is_lossy(run, flat.dtype):
                self._encode_run(run, codec, values, payload, key, part)
            else:
                codec.encode_into(values, payload, run.own_key(key))

    def add_residual(self, name: str, part: str, values: Tensor, step: int) -> None:
        """Add the residual of a parameter's part to ``values``.

        Raises:
            StateError: the parameter has another size than when its residual was made.
        """
        residual = self._residual(name, part, len(values), values.device)
        if self.policy.reset_every and step % self.policy.reset_every == 0:
            residual.clear(self._step)
        values.add_(residual.values())

    def keep_lost(self, name: str, part: str, lost: Tensor) -> None:
        """Renew the residual of a parameter's part."""
        residual = self._residual(name, part, len(lost), lost.device)
        residual.renew(lost, self.policy.average, self._step)

    def commit(self) -> None:
        """The step under way was taken: the next payload begins another."""
        self._step += 1

    def undo(self) -> None:
        """The step under way is not taken: all residuals become what they were before it.

        Raises:
            StateError: the policy is not undoable.
        """
        if not self.policy.undoable:
            raise StateError(
                "residuals of the step before are not kept, so a step cannot be taken back: "
                "use residual_undo=true in the recipe"
            )
        for residual in self._residuals.values():
            residual.undo(self._step)
        self._step += 1

    def state(self) -> dict[str, Tensor]:
        """All residuals, by ``"parameter/part"``; the tensors themselves, not copies.

        They are flat: floats, or bytes of payloads where the policy's format is neither fp32 nor
        bf16.
        """
        kept = {place: residual.stored for place, residual in self._residuals.items()}
        return {f"{name}/{part}": t for (name, part), t in (self._loaded | kept).items()}

    def check(self, state: Mapping[str, Tensor]) -> None:
        """Raise unless a state is one of residuals.

        Raises:
            StateError: an entry is no flat tensor of floats or bytes called ``"parameter/part"``.
        """
        for entry, tensor in state.items():
            if (
                "/" not in entry
                or tensor.dim() != 1
                or tensor.dtype not in (*FLOAT_DTYPES, torch.uint8)
            ):
                raise StateError(
                    f"{entry!r} ({tensor.dtype}, shape {tuple(tensor.shape)}) is no residual: "
                    "pass what Residuals.state() returned"
                )

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what :meth:`state` returned.

        Sizes are checked when the parameters are next encoded.

        Raises:
            StateError: see :meth:`check`.
        """
        self.check(state)
        loaded: dict[tuple[str, str], Tensor] = {}
        for entry, tensor in state.items():
            name, _, part = entry.rpartition("/")
            loaded[name, part] = tensor.detach().clone()
        self._residuals, self._loaded = {}, loaded

    def _encode_run(
        self, run: Run, codec: Codec, values: Tensor, payload: Tensor, key: Key, part: str
    ) -> None:
        carried = values.to(torch.float32, copy=True)
        for segment, stretch in _stretches(run, carried):
            self.add_residual(segment.name, part, stretch, key.step)
        codec.encode_into(carried, payload, run.own_key(key))
        decoded = torch.empty_like(carried)
        codec.decode_into(payload, decoded)
        lost = carried.sub_(decoded)
        del decoded  # an average needs room
        for segment, stretch in _stretches(run, lost):
            self.keep_lost(segment.name, part, stretch)

    def _residual(self, name: str, part: str, numel: int, device: torch.device) -> Residual:
        residual = self._residuals.get((name, part))
        if residual is None:
            policy = self.policy
            residual = Residual(numel, policy.format, device, undoable=policy.undoable)
            loaded = self._loaded.pop((name, part), None)
            if loaded is not None:
                residual.load(loaded)
            self._residuals[name, part] = residual
        if residual.numel != numel:
            raise StateError(
                f"parameter {name} has {numel} elements to send, but its residual has "
                f"{residual.numel}: it was resized, or the number of ranks changed; attach "
                "compression again"
            )
        return residual


def _is_lossy(run: Run, dtype: torch.dtype) -> bool:
    """Whether the run's format does not hold every value of ``dtype``."""
    written = _CAST_DTYPES.get(run.format.family)
    return run.numel > 0 and written not in (dtype, torch.float32)


def _stretches(run: Run, values: Tensor) -> Iterator[tuple[Segment, Tensor]]:
    """Every segment of a run, and its values."""
    sizes = [segment.numel for segment in run.segments]
    return zip(run.segments, torch.split(values, sizes), strict=True)
