"""8-bit floats with a scale: the type's whole range is used, and what it holds comes back."""

from __future__ import annotations

import math

import pytest
import torch

from thinwire.formats import parse_format
from thinwire.wire import Key, decode, encode
from thinwire.wire.reference.float8 import FLOAT8_TYPES
from wire_cases import FLOAT8, block_of_each, codecs_of, decoded, encoded, section

NEAREST = [text for text in FLOAT8 if "stochastic" not in text]


@pytest.mark.parametrize("text", NEAREST)
def test_encoding_what_was_decoded_changes_nothing(text: str) -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(300, generator=generator) * torch.randn(300, generator=generator).exp()
    for codec in codecs_of(text):
        first = encoded(codec, x)
        again = encoded(codec, decoded(codec, first, 300, torch.float32))
        assert torch.equal(first, again)


@pytest.mark.parametrize("family", FLOAT8_TYPES)
def test_every_number_of_the_type_comes_back(family: str) -> None:
    bits = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    numbers = bits.view(FLOAT8_TYPES[family].dtype).float()
    numbers = numbers[numbers.isfinite()]
    for codec in codecs_of(f"{family}/512"):
        again = decoded(codec, encoded(codec, numbers), numbers.numel(), torch.float32)
        assert torch.equal(again, numbers)  # the largest makes the scale 1
        scaled = numbers * 2.0**-40
        again = decoded(codec, encoded(codec, scaled), numbers.numel(), torch.float32)
        assert torch.equal(again, scaled)


@pytest.mark.parametrize("text", [text for text in FLOAT8 if "stochastic" in text])
def test_stochastic_rounding_is_unbiased_for_every_element(text: str) -> None:
    num_draws = 2000
    fmt = parse_format(text)
    kind = FLOAT8_TYPES[fmt.family]
    x = torch.cat([torch.linspace(-2, 2, 20), torch.logspace(-6, 0, 12)])  # normal and denormal
    draws = torch.stack(
        [decode(encode(x, fmt, key=Key(step=step))) for step in range(num_draws)]
    ).double()
    scales = section(encode(x, fmt, key=Key()).bytes, fmt, 32, "scales")[block_of_each(fmt, 32)]
    exponent = (x.double().abs() / scales).log2().floor().clamp(min=kind.smallest_exponent)
    spacing = scales * 2.0 ** (exponent - kind.mantissa_bits)
    # One of two neighbours: sigma is at most half their distance. Added: the half step of 16 bits.
    bound = spacing * (4 * 0.5 / math.sqrt(num_draws) + 2.0**-15)
    assert ((draws.mean(0) - x.double()).abs() <= bound).all()
    assert ((draws - x.double()).abs() <= spacing * (1 + 2.0**-14)).all()
