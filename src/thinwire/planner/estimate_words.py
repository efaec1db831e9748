"""What an estimate was made for, in words: the terminal and the page say the same."""

from __future__ import annotations

from thinwire.planner.estimate import Estimate
from thinwire.planner.source import kind_of
from thinwire.quantities import (
    format_bit_rate,
    format_count,
    format_duration,
    format_numbered,
    format_share,
)

__all__ = ["say_codec_source", "say_conditions"]


def say_conditions(estimate: Estimate) -> str:
    """What is sent over what: parameters, rate, latency, loss and protocol."""
    link = estimate.link
    words = f"{format_numbered(format_count(estimate.parameters), 'parameter')} over "
    words += f"{format_bit_rate(link.bit_per_s)}, {format_duration(link.latency_s)} one way"
    if link.loss:
        words += f", {format_share(link.loss)} of packets lost"
    return f"{words}, {link.protocol}"


def say_codec_source(estimate: Estimate) -> str:
    """How sure the codecs' times are."""
    device = estimate.device
    return f"Codec times: {device.name}, {kind_of(device.sources['codec'])}."
