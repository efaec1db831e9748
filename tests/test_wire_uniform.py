"""Laws of the uniform lattices: what comes back again, and what is right on average."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from thinwire.formats import parse_format
from thinwire.wire import Key, codec_for, decode, encode
from thinwire.wire.codec import Codec
from thinwire.wire.levels import Levels, draw_shift
from wire_cases import CPU, DTYPES, UNIFORM, block_of_each, codecs_of, decoded, encoded, section

# Random rounding, a moved lattice and 8-bit zero points do not keep the block's extremes; every
# other lattice does, and gives the same bytes again.
KEEPING = [
    text
    for text in UNIFORM
    if not parse_format(text).is_stochastic and "+asym+bf16scale" not in text
]


def _heavy_tailed(numel: int) -> Tensor:
    generator = torch.Generator().manual_seed(numel)
    return torch.randn(numel, generator=generator) * torch.randn(numel, generator=generator).exp()


def _draws(codec: Codec, x: Tensor, num_draws: int) -> Tensor:
    """What decodes of ``x`` under many keys, one row each, in float64."""
    keys = [Key(step=step) for step in range(num_draws)]
    rows = [decoded(codec, encoded(codec, x, key), x.numel(), torch.float32) for key in keys]
    return torch.stack(rows).double()


@pytest.mark.parametrize("text", KEEPING)
def test_encoding_what_was_decoded_changes_nothing(text: str) -> None:
    for codec in codecs_of(text):
        for numel in (1, 5, 8, 300):
            first = encoded(codec, _heavy_tailed(numel))
            again = encoded(codec, decoded(codec, first, numel, torch.float32))
            assert torch.equal(first, again)


@pytest.mark.parametrize("text", [text for text in KEEPING if "asym" not in text])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_16_bits_the_second_payload_is_final(text: str, dtype: torch.dtype) -> None:
    # Decoding to 16 bits rounds the largest value of a block, from which the next scale is made;
    # the next decoding rounds to the same value.
    for codec in codecs_of(text):
        x = _heavy_tailed(300).to(dtype)
        second = encoded(codec, decoded(codec, encoded(codec, x), 300, dtype))
        third = encoded(codec, decoded(codec, second, 300, dtype))
        assert torch.equal(second, third)


@pytest.mark.parametrize("text", [text for text in UNIFORM if "asym" not in text])
def test_decoding_is_exact_and_needs_no_rounding(text: str) -> None:
    # note [exact products]: float64 arithmetic on codes and scales gives the very same numbers.
    fmt = parse_format(text)
    codec = codec_for(fmt, CPU)
    x = _heavy_tailed(300)
    payload = encoded(codec, x)
    scales = section(payload, fmt, 300, "scales")[block_of_each(fmt, 300)]
    steps = decoded(codec, payload, 300, torch.float32).double() / scales
    shift = 0.0
    if "shift" in fmt.options:
        shift = payload[:4].view(torch.float32).double().item()
    codes = steps - shift
    assert torch.equal(codes, codes.round())
    assert codes.abs().max() <= Levels.of(fmt).top


@pytest.mark.parametrize("text", [t for t in UNIFORM if "+stochastic" in t and "/24" in t])
def test_stochastic_rounding_is_unbiased_for_every_element(text: str) -> None:
    num_draws = 2000
    fmt = parse_format(text)
    codec = codec_for(fmt, CPU)
    x = torch.linspace(-1.3, 2.1, 48)
    draws = _draws(codec, x, num_draws)
    scales = section(encoded(codec, x), fmt, 48, "scales")[block_of_each(fmt, 48)]
    # Rounding to one of two neighbours a step apart: sigma is at most half a step. Added: the half
    # step of 16 random bits, and float32.
    bound = 4 * 0.5 * scales / math.sqrt(num_draws) + scales * 2.0**-16 + 2.0**-22
    assert ((draws.mean(0) - x.double()).abs() < bound).all()
    variance = draws.var(0)
    assert (variance <= scales**2 * (0.25 + 0.02)).all()
    assert (variance > 0).float().mean() > 0.9


@pytest.mark.parametrize("text", [t for t in UNIFORM if "+shift" in t and "/24" in t])
def test_the_shifted_lattice_is_unbiased_for_every_element(text: str) -> None:
    num_draws = 2000
    fmt = parse_format(text)
    codec = codec_for(fmt, CPU)
    x = torch.linspace(-1.3, 2.1, 48)
    draws = _draws(codec, x, num_draws)
    scales = section(encoded(codec, x), fmt, 48, "scales")[block_of_each(fmt, 48)]
    # The error is uniform over a step: sigma is a step over sqrt(12). Added: half the spacing of
    # the grid that shifts are drawn from.
    grid = 2.0 ** (fmt.bits - 17)
    bound = 4 * scales / math.sqrt(12 * num_draws) + scales * grid
    assert ((draws.mean(0) - x.double()).abs() < bound).all()
    assert ((draws - x.double()).abs() <= scales * 0.5 * (1 + 2.0**-14)).all()


def test_qsgds_variance_bound() -> None:
    # QSGD, lemma 3.1: with s levels scaled by the 2-norm,
    # E|Q(v) - v|^2 <= min(n/s^2, sqrt(n)/s) |v|^2.
    # Blocks scaled by their largest magnitude, which is at most the 2-norm, must do no worse.
    num_draws, numel = 300, 128
    x = _heavy_tailed(numel)
    norm = x.double().square().sum()
    for bits in range(2, 9):
        fmt = parse_format(f"int{bits}/128+stochastic")
        levels = 2 ** (bits - 1) - 1
        errors = [
            (decode(encode(x, fmt, key=Key(step=step))).double() - x.double()).square().sum()
            for step in range(num_draws)
        ]
        bound = min(numel / levels**2, math.sqrt(numel) / levels) * norm
        assert torch.stack(errors).mean() <= bound


def test_nearest_ternary_weights_stick_where_deltas_converge() -> None:
    # The counter-example of SDP4Bit: f(w) = |w|^2, gradient 2w. Weights that are rounded to ternary
    # values after each step of size < 1/8 stay at (1, -1): a step moves them by less than half a
    # level. Sending the rounded difference to what the others hold converges.
    fmt, rate = parse_format("int2/8"), 0.1
    direct = torch.tensor([1.0, -1.0])
    master, held = direct.clone(), direct.clone()
    for _ in range(100):
        direct = decode(encode(direct - rate * 2 * direct, fmt))
        direct = direct.sign() * direct.abs().round()  # back onto the ternary levels -1, 0, 1
        master -= rate * 2 * held
        held = held + decode(encode(master - held, fmt))
    assert direct.tolist() == [1.0, -1.0]
    assert held.abs().max() < 1e-6


def test_a_scale_covers_the_whole_block_and_only_it() -> None:
    x = torch.cat([torch.full((8,), 1e-6), torch.full((8,), 1e6), torch.full((3,), 5.0)])
    again = decode(encode(x, "int8/8"))
    assert torch.allclose(again, x, rtol=2.0**-15, atol=0)


def test_the_zero_point_is_the_smallest_value() -> None:
    x = torch.tensor([1000.0, 1000.25, 1001.0, 1003.0])
    for codec in codecs_of("int2/8+asym"):
        assert decoded(codec, encoded(codec, x), 4, torch.float32).tolist() == [
            1000,
            1000,
            1001,
            1003,
        ]


def test_a_whole_float32_range_in_one_block() -> None:
    largest = torch.finfo(torch.float32).max
    x = torch.tensor([-largest, largest, 0.0, largest / 2])
    for text in ("int8/8+asym", "int2/8+asym", "int4/8", "int8/8+stochastic"):
        for codec in codecs_of(text):
            again = decoded(codec, encoded(codec, x), 4, torch.float32)
            assert again.isfinite().all()
            assert (again[:2].abs() > largest * 0.99).all()


def test_shifts_cover_the_step_evenly() -> None:
    for bits in range(2, 9):
        shifts = torch.tensor([draw_shift(Key(step=step), bits) for step in range(4000)]).double()
        assert shifts.abs().max() < 0.5
        assert shifts.mean().abs() < 4 / math.sqrt(12 * 4000)
        on_grid = (shifts + 0.5) * 2 ** (16 - bits) - 0.5
        assert torch.equal(on_grid, on_grid.round())


@pytest.mark.parametrize("dtype", DTYPES)
def test_six_e_minus_8_and_6e4_survive(dtype: torch.dtype) -> None:
    # The smallest denormal and nearly the largest number of float16: neither 0 nor Inf.
    for text in ("int8/32", "int4/32+stochastic", "int4/32+asym"):
        for value in (6e-8, 6e4):
            x = torch.full((40,), value, dtype=dtype)
            again = decode(encode(x, text, key=Key()))
            assert again.isfinite().all()
            assert (again != 0).all()
