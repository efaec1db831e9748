"""Formats, tensors and bounds that the tests of the wire share."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from thinwire.formats import WireFormat, parse_format
from thinwire.wire import Key, codec_for, reference_codec
from thinwire.wire.codec import FLOAT_DTYPES, Codec

CPU = torch.device("cpu")
KEY = Key(seed=7, step=3, parameter="layer.weight", rank=1)

CASTS = ("fp32", "bf16", "fp16")
UNIFORM_OPTIONS = (
    "",
    "+asym",
    "+stochastic",
    "+shift",
    "+bf16scale",
    "+asym+stochastic",
    "+asym+bf16scale",
    "+stochastic+bf16scale",
    "+shift+bf16scale",
)
FLOAT8 = tuple(
    f"{family}/32{options}"
    for family in ("e4m3", "e5m2")
    for options in ("", "+stochastic", "+bf16scale", "+stochastic+bf16scale")
)
INTEGERS = tuple(f"int{bits}" for bits in range(2, 9))
# 24 is a block that is no power of two; 8 the smallest; 128 the default.
UNIFORM_BLOCKS = (8, 24, 128)
LOGARITHMS = tuple(f"log{bits}" for bits in range(4, 9))
LOGARITHM_BLOCKS = (24, 128)
LOGARITHM_OPTIONS = ("", "+stochastic", "+bf16scale", "+stochastic+bf16scale")
ROTATED_NAMES = ("int4", "int8")
ROTATED_BLOCKS = (32, 96)
ROTATED_OPTIONS = (
    "+hadamard",
    "+asym+hadamard",
    "+stochastic+hadamard",
    "+shift+hadamard",
    "+hadamard+bf16scale",
)


def _all_three(
    names: tuple[str, ...], blocks: tuple[int, ...], options: tuple[str, ...]
) -> tuple[str, ...]:
    return tuple(
        f"{name}/{block}{option}" for name in names for block in blocks for option in options
    )


def _every_two(
    names: tuple[str, ...], blocks: tuple[int, ...], options: tuple[str, ...]
) -> tuple[str, ...]:
    """Of :func:`_all_three`, as few as have every two of name, block and options together."""
    return tuple(
        f"{name}/{blocks[(i + j) % len(blocks)]}{option}"
        for i, name in enumerate(names)
        for j, option in enumerate(options)
    )


UNIFORM = _all_three(INTEGERS, UNIFORM_BLOCKS, UNIFORM_OPTIONS)
LOGARITHMIC = _all_three(LOGARITHMS, LOGARITHM_BLOCKS, LOGARITHM_OPTIONS)
SIGN = ("sign/8", "sign/24", "sign/128+bf16scale")
CLIPPED = (
    "int4/24+clip=90",
    "int8/128+clip=97.5",
    "int4/128+asym+clip=95",
    "int3/24+asym+clip=75+bf16scale",
    "log5/24+clip=90",
    "log4/128+clip=99",
)
LEARNED = (
    "int2/24+levels",
    "int4/128+levels+bf16scale",
    "int6/24+levels",
    "int4/128+clip=95+levels",
)
ROTATED_OTHERS = (
    "log4/64+hadamard",
    "sign/64+hadamard",
    "e4m3/32+hadamard",
    "e5m2/32+hadamard",
    "int4/64+hadamard+clip=95",
    "int3/64+hadamard+levels",
)
ROTATED = (*_all_three(ROTATED_NAMES, ROTATED_BLOCKS, ROTATED_OPTIONS), *ROTATED_OTHERS)
# 300 elements: the first two take a list of positions where the third takes a mask.
SPARSE = ("topk=0.001", "topk=0.01", "topk=0.1")

BLOCKED = (*FLOAT8, *UNIFORM, *LOGARITHMIC, *SIGN, *CLIPPED, *LEARNED, *ROTATED)
# Low rank needs a matrix, which these tests do not have: test_wire_factors.py.
ALL = (*CASTS, *BLOCKED, *SPARSE)

# What is tried one by one: no code depends on more than two parts of a name. All others are drawn
# at random by the tests of any values.
BLOCKED_PAIRS = (
    *FLOAT8,
    *_every_two(INTEGERS, UNIFORM_BLOCKS, UNIFORM_OPTIONS),
    *_every_two(LOGARITHMS, LOGARITHM_BLOCKS, LOGARITHM_OPTIONS),
    *SIGN,
    *CLIPPED,
    *LEARNED,
    *_every_two(ROTATED_NAMES, ROTATED_BLOCKS, ROTATED_OPTIONS),
    *ROTATED_OTHERS,
)
PAIRS = (*CASTS, *BLOCKED_PAIRS, *SPARSE)

DTYPES = FLOAT_DTYPES
SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (1,), (7,), (8,), (9,), (3, 0, 2), (13, 23))


def codecs_of(text: str) -> list[Codec]:
    """The reference codec of a format and, where it has one, its kernel."""
    fmt = parse_format(text)
    reference, fast = reference_codec(fmt), codec_for(fmt, CPU)
    return [reference] if fast is reference else [reference, fast]


def encoded(codec: Codec, x: Tensor, key: Key = KEY) -> Tensor:
    """The payload of a flat tensor; memory is dirty before, so that gaps would show."""
    payload = torch.full((codec.format.wire_bytes(x.numel()),), 0xAB, dtype=torch.uint8)
    codec.encode_into(x, payload, key)
    return payload


def decoded(codec: Codec, payload: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
    """The flat tensor of a payload."""
    out = torch.full((numel,), math.nan, dtype=dtype)
    codec.decode_into(payload, out)
    return out


def tensors(numel: int, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Finite tensors of every kind that training has shown, by name."""
    generator = torch.Generator().manual_seed(numel)
    normal = torch.randn(numel, generator=generator)
    huge = {torch.float32: 3e38, torch.bfloat16: 1e30, torch.float16: 6e4}[dtype]
    yield "normal", normal.to(dtype)
    yield "zeros", torch.zeros(numel, dtype=dtype)
    yield "negative", (-3.0 - normal.abs()).to(dtype)
    yield "constant", torch.full((numel,), 0.37, dtype=dtype)
    yield "denormal", (normal * torch.finfo(dtype).tiny / 8).to(dtype)
    yield "huge", (huge * normal.clamp(-1, 1)).to(dtype)
    spread = torch.exp(torch.randn(numel, generator=generator) * 4)
    yield "spread", (normal * spread).to(dtype)


def block_of_each(fmt: WireFormat, numel: int) -> Tensor:
    """The number of the block that each element belongs to."""
    assert fmt.block is not None
    return torch.arange(numel) // fmt.block


def section(payload: Tensor, fmt: WireFormat, numel: int, name: str) -> Tensor:
    """The scales or the zero points of a payload, in float64, read as the format page says."""
    layout = fmt.layout(numel)
    start, stop = {
        "scales": (layout.scales_at, layout.zeros_at),
        "zeros": (layout.zeros_at, layout.codes_at),
    }[name]
    dtype = torch.bfloat16 if "bf16scale" in fmt.options else torch.float32
    return payload[start:stop].view(dtype).double()


def rounding_of(dtype: torch.dtype, values: Tensor) -> Tensor:
    """What storing ``values`` in a dtype may lose: half a unit in the last place."""
    info = torch.finfo(dtype)
    return values.double().abs() * info.eps / 2 + info.smallest_normal * info.eps
