"""Several parameters, one after another in a flat buffer, as one run of bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from thinwire.errors import ConfigError
from thinwire.formats import WireFormat
from thinwire.wire.codec import Codec
from thinwire.wire.key import Key
from thinwire.wire.registry import codec_for

__all__ = ["Packing", "Run", "Segment"]


@dataclass(frozen=True, slots=True)
class Segment:
    """One parameter's stretch of a flat buffer.

    Attributes:
        numel: elements that travel.
        format: how they travel.
        name: names its random numbers: they stay the same when parameters are grouped differently.
        padding: elements after them that do not travel and decode to 0.
    """

    numel: int
    format: WireFormat
    name: str
    padding: int = 0

    def __post_init__(self) -> None:
        """Refuse sizes that no buffer has."""
        if self.numel < 0 or self.padding < 0:
            raise ConfigError(
                f"segment {self.name!r} has numel {self.numel} and padding {self.padding}: "
                "both must be 0 or more"
            )

    @property
    def wire_bytes(self) -> int:
        """Bytes of this segment's payload."""
        return self.format.wire_bytes(self.numel)


@dataclass(frozen=True, slots=True)
class Run:
    """A stretch that one codec call handles.

    Attributes:
        segments: what lies in it, without gaps: one parameter, or several that travel in one cast.
        element: where it starts in the flat buffer, in elements.
        byte: where it starts in the payload.
        numel: elements that travel.
        wire_bytes: bytes of its payload.
    """

    segments: tuple[Segment, ...]
    element: int
    byte: int
    numel: int
    wire_bytes: int

    @property
    def format(self) -> WireFormat:
        """How it travels."""
        return self.segments[0].format

    def values(self, flat: Tensor) -> Tensor:
        """Its elements of a flat buffer."""
        return flat[self.element : self.element + self.numel]

    def bytes_of(self, payload: Tensor) -> Tensor:
        """Its bytes of a payload."""
        return payload[self.byte : self.byte + self.wire_bytes]

    def padding_of(self, flat: Tensor) -> Tensor:
        """The elements after it that do not travel."""
        start = self.element + self.numel
        return flat[start : start + self.segments[-1].padding]

    def own_key(self, key: Key) -> Key:
        """Names its random numbers, whatever else is in the buffer."""
        return key.fold(self.segments[0].name) if self.format.is_stochastic else key


class Packing:
    """How a flat buffer of parameters becomes bytes, parameter by parameter.

    Every segment has blocks of its own, so that no scale covers two parameters, and random numbers
    of its own. The payloads lie one after another; their sizes are those of the segments.

    Attributes:
        segments: as given.
        numel: elements of the flat buffer, padding included.
        wire_bytes: the sum of the segments' payload sizes.
        offsets: where each segment's payload starts, in bytes.
        starts: where each segment starts in the flat buffer, in elements.
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = tuple(segments)
        elements = accumulate((s.numel + s.padding for s in self.segments), initial=0)
        payload_bytes = accumulate((s.wire_bytes for s in self.segments), initial=0)
        *self.starts, self.numel = elements
        *self.offsets, self.wire_bytes = payload_bytes
        self._runs = tuple(self._merged_runs())
        self._codecs_of: dict[torch.device, list[Codec]] = {}

    def encode_into(self, flat: Tensor, out: Tensor, key: Key) -> None:
        """Encode ``flat`` (1-D, ``numel`` elements) into ``out`` (uint8, ``wire_bytes`` bytes).

        Raises:
            ConfigError: a tensor has another size, or is not what `Codec.encode_into` takes.
        """
        self._check(flat, [out])
        for run, codec in self.codecs(flat.device):
            codec.encode_into(run.values(flat), run.bytes_of(out), run.own_key(key))

    def decode_into(self, payload: Tensor, flat: Tensor) -> None:
        """Decode ``payload`` into ``flat``; padding becomes 0. Errors as for `encode_into`."""
        self._check(flat, [payload])
        for run, codec in self.codecs(flat.device):
            codec.decode_into(run.bytes_of(payload), run.values(flat))
            run.padding_of(flat).zero_()

    def decode_sum_into(self, payloads: Sequence[Tensor], flat: Tensor) -> None:
        """Decode and sum in the order given, in float32; padding becomes 0."""
        self._check(flat, payloads)
        for run, codec in self.codecs(flat.device):
            parts = [run.bytes_of(payload) for payload in payloads]
            codec.decode_sum_into(parts, run.values(flat))
            run.padding_of(flat).zero_()

    def codecs(self, device: torch.device) -> Iterator[tuple[Run, Codec]]:
        """Every run, in order, and the codec that encodes and decodes it on a device."""
        codecs = self._codecs_of.get(device)
        if codecs is None:
            codecs = [codec_for(run.format, device) for run in self._runs]
            self._codecs_of[device] = codecs
        yield from zip(self._runs, codecs, strict=True)

    def _check(self, flat: Tensor, payloads: Sequence[Tensor]) -> None:
        if flat.shape != (self.numel,):
            raise ConfigError(
                f"the flat buffer has shape {tuple(flat.shape)}: this packing takes ({self.numel},)"
            )
        for payload in payloads:
            if payload.shape != (self.wire_bytes,):
                raise ConfigError(
                    f"a packed payload has shape {tuple(payload.shape)}: "
                    f"this packing takes ({self.wire_bytes},)"
                )

    def _merged_runs(self) -> Iterator[Run]:
        """One run a segment, but consecutive casts together: norms and biases come in hundreds."""
        pending: Run | None = None
        for segment, element, byte in zip(self.segments, self.starts, self.offsets, strict=True):
            if pending is not None and _joins(pending.segments[-1], segment):
                numel = pending.numel + segment.numel
                pending = replace(
                    pending,
                    segments=(*pending.segments, segment),
                    numel=numel,
                    wire_bytes=segment.format.wire_bytes(numel),
                )
                continue
            if pending is not None:
                yield pending
            pending = Run(
                segments=(segment,),
                element=element,
                byte=byte,
                numel=segment.numel,
                wire_bytes=segment.wire_bytes,
            )
        if pending is not None:
            yield pending


def _joins(first: Segment, second: Segment) -> bool:
    """Whether two neighbours are one cast: same format, no gap in the elements or in the bytes."""
    return (
        first.format.is_cast
        and first.format == second.format
        and first.padding == 0
        and first.format.code_bytes(first.numel) == first.wire_bytes
    )
