"""One transfer, every format side by side: bytes, seconds on the link, seconds in the codec."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from thinwire.errors import ConfigError
from thinwire.formats import WireFormat, parse_format
from thinwire.planner.call import CodecWork
from thinwire.planner.cost import transfer_s, work_s
from thinwire.planner.hardware import Device, Link

__all__ = ["DEFAULT_FORMATS", "Estimate", "EstimateRow", "estimate"]

# beyond any link; a gain that is left at the fastest does not depend on the rate
SLOWEST_BIT_PER_S, FASTEST_BIT_PER_S = 1.0, 1e18
PRECISION = 1e-6  # of the rate

# all families but lowrank, whose size depends on the shape of each matrix
DEFAULT_FORMATS = (
    "fp32",
    "bf16",
    "fp16",
    "e4m3/128",
    "e5m2/128",
    *(f"int{bits}/128" for bits in range(8, 1, -1)),
    "log8/128",
    "log4/128",
    "sign/128",
    "topk=0.1",
    "topk=0.01",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateRow:
    """One format.

    Attributes:
        format: how the parameters are written.
        payload_bytes: exactly, scales and positions included.
        transfer_s: from the first byte sent to the last received.
        codec_s: encoding at one end and decoding at the other.
        pays_below_bit_per_s: rate of the link below which it is faster than fp32; ``None``: at
            none; infinite: at any.
    """

    format: WireFormat
    payload_bytes: int
    transfer_s: float
    codec_s: float
    pays_below_bit_per_s: float | None

    @property
    def total_s(self) -> float:
        """Encode, transfer, decode, one after another."""
        return self.transfer_s + self.codec_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A transfer in every format.

    Attributes:
        parameters: how many.
        link: that carries them.
        device: that encodes and decodes them.
        rows: one for each format, in the order asked for.
    """

    parameters: int
    link: Link
    device: Device
    rows: tuple[EstimateRow, ...]

    def to_json(self) -> dict[str, Any]:
        """The document that ``thinwire estimate --json`` prints."""
        return {
            "rows": [
                {
                    "format": str(row.format),
                    "payload_bytes": row.payload_bytes,
                    "transfer_s": row.transfer_s,
                    "codec_s": row.codec_s,
                    "total_s": row.total_s,
                    # JSON has no infinity: what pays at any rate pays below the largest number
                    "pays_below_bit_per_s": (
                        None
                        if row.pays_below_bit_per_s is None
                        else min(row.pays_below_bit_per_s, sys.float_info.max)
                    ),
                }
                for row in self.rows
            ]
        }


def estimate(
    parameters: int, link: Link, device: Device, formats: Sequence[str] = DEFAULT_FORMATS
) -> Estimate:
    """Price one transfer in every format.

    Args:
        parameters: how many, kept in fp32 at both ends.
        link: that carries them.
        device: that encodes and decodes them.
        formats: in the grammar of :func:`thinwire.parse_format`.

    Raises:
        ConfigError: no parameter, or no format.
        FormatError: a format that does not parse.
    """
    if parameters < 1:
        raise ConfigError(f"{parameters} parameters: at least 1 is needed")
    if not formats:
        raise ConfigError("no format to estimate: name at least one, such as int4/128")
    return Estimate(
        parameters=parameters,
        link=link,
        device=device,
        rows=tuple(_row(parameters, link, device, parse_format(text)) for text in formats),
    )


def format_codec_s(parameters: int, device: Device, fmt: WireFormat) -> float:
    """Seconds to encode and to decode; fp32 travels as it lies."""
    if fmt.name == "fp32":
        return 0.0
    work = (CodecWork("encode", fmt, parameters), CodecWork("decode", fmt, parameters))
    return work_s(work, device)


def _row(parameters: int, link: Link, device: Device, fmt: WireFormat) -> EstimateRow:
    payload_bytes = fmt.wire_bytes(parameters)
    codec_s = format_codec_s(parameters, device, fmt)
    return EstimateRow(
        format=fmt,
        payload_bytes=payload_bytes,
        transfer_s=transfer_s(link, payload_bytes),
        codec_s=codec_s,
        pays_below_bit_per_s=_pays_below(link, 4 * parameters, payload_bytes, codec_s),
    )


def _pays_below(link: Link, whole_bytes: int, payload_bytes: int, codec_s: float) -> float | None:
    """The rate at which the bytes saved take as long as the codec.

    The gain never grows with the rate, and is level where loss holds a connection below it.
    """
    if payload_bytes >= whole_bytes:
        return None

    def pays(bit_per_s: float) -> bool:
        at = dataclasses.replace(link, bit_per_s=bit_per_s)
        return transfer_s(at, payload_bytes) + codec_s < transfer_s(at, whole_bytes)

    if codec_s == 0 or pays(FASTEST_BIT_PER_S):
        return math.inf
    if not pays(SLOWEST_BIT_PER_S):
        return None
    low, high = SLOWEST_BIT_PER_S, FASTEST_BIT_PER_S
    while high > low * (1 + PRECISION):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if pays(middle) else (low, middle)
    return math.sqrt(low * high)
