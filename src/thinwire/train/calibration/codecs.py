"""What is timed of codecs: every kind of format that the planner prices, small and large."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from thinwire.formats import WireFormat, parse_format
from thinwire.planner.call import CodecWork
from thinwire.planner.cost import format_kind
from thinwire.train.calibration.clock import Case
from thinwire.wire.key import Key
from thinwire.wire.registry import codec_for

__all__ = ["FORMATS", "codec_cases", "kind_of"]

# the formats of the named recipes, and one of every other kind that is priced
FORMATS = (
    "bf16",
    "e4m3/128",
    "int8/256",
    "int4/128+bf16scale",
    "int3/128+bf16scale",
    "int8/256+stochastic",
    "int8/256+shift",
    "int4/128+clip=95",
    "int4/128+levels",
    "int4/128+hadamard",
    "log4/128",
    "sign/128",
    "topk=0.01",
)
NUMELS = (1 << 8, 1 << 14, 1 << 21)
VERBS = ("encode", "decode", "sum")
SUMMED = 2  # payloads, and so elements are counted twice


def kind_of(verb: str, format_name: str) -> str:
    """How the planner prices a verb of a format."""
    return format_kind(CodecWork(verb, parse_format(format_name), 1))


def codec_cases(device: torch.device) -> Iterator[Case]:
    """Encode, decode, and decode into a sum; the case is ``VERB FORMAT``, the size in elements."""
    for name in FORMATS:
        fmt = parse_format(name)
        codec = codec_for(fmt, device)
        for numel in NUMELS:
            values, payload = _encoded(fmt, numel, device)
            total = torch.empty(numel, device=device)

            def encode(codec=codec, values=values, payload=payload) -> None:  # type: ignore[no-untyped-def]
                codec.encode_into(values, payload, Key())

            def decode(codec=codec, payload=payload, total=total) -> None:  # type: ignore[no-untyped-def]
                codec.decode_into(payload, total)

            def add(codec=codec, payload=payload, total=total) -> None:  # type: ignore[no-untyped-def]
                codec.decode_sum_into([payload] * SUMMED, total)

            actions: tuple[Callable[[], object], ...] = (encode, decode, add)
            for verb, action in zip(VERBS, actions, strict=True):
                size = SUMMED * numel if verb == "sum" else numel
                yield Case(figure="codec", case=f"{verb} {name}", size=size, action=action)


def _encoded(fmt: WireFormat, numel: int, device: torch.device) -> tuple[Tensor, Tensor]:
    values = torch.randn(numel, device=device)
    payload = torch.empty(fmt.wire_bytes(numel), dtype=torch.uint8, device=device)
    codec_for(fmt, device).encode_into(values, payload, Key())
    return values, payload
