"""What a format does to a tensor, held against a plain computation in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from thinwire.errors import FormatError
from thinwire.formats import parse_format
from thinwire.inspection import profile as profiling
from thinwire.inspection.distortion import HURT_ERROR, Distortion, carry, distort, snr_db
from thinwire.inspection.profile import profile
from thinwire.wire import Key, decode, encode

FORMATS = (
    "fp32",
    "bf16",
    "int8/128",
    "int4/128+stochastic",
    "int4/64+hadamard+bf16scale",
    "int4/128+shift",
    "e4m3/32",
    "log4/128",
    "sign/128",
    "topk=0.1",
    "lowrank=2",
)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def measure(values: Tensor, fmt: str, name: str = "w") -> Distortion:
    return distort(values, parse_format(fmt), name, profile(values))


@pytest.mark.parametrize("text", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_figures_are_those_of_a_plain_computation(text: str, dtype: torch.dtype) -> None:
    values = draw(37, 29).to(dtype)
    values[3] = 0
    found = measure(values, text)
    key = Key(parameter="w")
    # widened before, so that the arriving values are not rounded to the dtype of the tensor
    arrived = decode(encode(values.float(), text, key=key)).double()
    sent = values.double()
    error = arrived - sent
    # sums of a thousand numbers in float64, in another order: 1e-12 is far above their rounding
    rms = float(sent.square().mean().sqrt())
    assert found.relative_error == pytest.approx(float(error.norm() / sent.norm()), rel=1e-12)
    assert found.mean_bias == pytest.approx(float(error.mean()) / rms, rel=1e-9, abs=1e-15)
    assert found.zeros == float((arrived == 0).double().mean())
    fmt = parse_format(text)
    assert found.wire_bytes == fmt.wire_bytes_of(values.shape)
    assert found.bits_per_element == 8 * found.wire_bytes / values.numel()


def test_the_size_of_the_pieces_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    values = draw(1000)
    whole = measure(values, "int4/128")
    monkeypatch.setattr(profiling, "PIECE_ELEMENTS", 7)
    pieced = measure(values, "int4/128")
    assert pieced.zeros == whole.zeros
    assert pieced.relative_error == pytest.approx(whole.relative_error, rel=1e-12)
    assert pieced.mean_bias == pytest.approx(whole.mean_bias, rel=1e-9)


def test_nothing_is_done_to_the_tensor() -> None:
    for dtype in (torch.float32, torch.float64):
        values = draw(64, 3).to(dtype)
        before = values.clone()
        profile(values)
        if dtype is torch.float32:
            measure(values, "int2/64")
        assert torch.equal(values, before)


def test_a_tensor_that_is_not_contiguous_is_taken_in_its_own_order() -> None:
    values = draw(48, 32).T
    assert measure(values, "int4/128") == measure(values.contiguous(), "int4/128")


def test_what_arrives_whole_has_no_noise() -> None:
    found = measure(draw(100), "fp32")
    assert (found.relative_error, found.mean_bias, found.zeros) == (0.0, 0.0, 0.0)
    assert snr_db(found.relative_error) is None


def test_a_tensor_of_zeros_arrives_whole() -> None:
    for text in FORMATS:
        found = measure(torch.zeros(16, 16), text)
        assert (found.relative_error, found.mean_bias, found.zeros) == (0.0, 0.0, 1.0), text


def test_ten_times_the_error_is_twenty_decibels_less() -> None:
    assert snr_db(0.1) == pytest.approx(20)
    assert snr_db(0.01) == pytest.approx(40)


def test_dropping_positive_elements_lowers_the_mean_by_what_was_dropped() -> None:
    values = torch.arange(1, 101, dtype=torch.float32)
    found = measure(values, "topk=0.25")
    rms = math.sqrt(sum(i * i for i in range(1, 101)) / 100)
    assert found.mean_bias == pytest.approx(-sum(range(1, 76)) / 100 / rms)
    assert found.zeros == 0.75


def test_a_power_of_two_changes_no_ratio() -> None:
    values = draw(2048)
    for text in ("int4/128", "e4m3/128", "log4/128"):
        found, scaled = measure(values, text), measure(values * 2.0**20, text)
        assert scaled.relative_error == found.relative_error
        assert scaled.zeros == found.zeros


def test_fewer_bits_lose_more() -> None:
    values = draw(4096)
    errors = [measure(values, f"int{bits}/128").relative_error for bits in range(8, 1, -1)]
    assert errors == sorted(errors)
    assert errors[0] > 0


def test_random_formats_repeat_and_differ_by_name() -> None:
    values = draw(4096)
    first = measure(values, "int4/128+stochastic", "a")
    assert measure(values, "int4/128+stochastic", "a") == first
    assert measure(values, "int4/128+stochastic", "b") != first


def test_low_rank_needs_a_matrix() -> None:
    with pytest.raises(FormatError, match="needs a matrix"):
        carry(draw(8), parse_format("lowrank=2"), "w")


def test_the_bound_is_twice_the_noise_of_normal_numbers() -> None:
    """Over a million numbers the noise power is known to some tenths of a percent."""
    found = measure(draw(1 << 20), "int4/128")
    assert 2 * found.relative_error**2 == pytest.approx(HURT_ERROR**2, rel=0.01)
    assert not found.hurts


def test_one_outlier_a_block_hurts_and_a_rotation_heals() -> None:
    values = draw(64, 128)
    values[:, 0] *= 30
    assert measure(values, "int4/128").hurts
    assert not measure(values, "int4/128+hadamard").hurts


def test_a_profile_counts_what_is_finite() -> None:
    values = torch.tensor([3.0, -4.0, 0.0, math.nan, math.inf])
    found = profile(values)
    assert (found.numel, found.num_nonfinite, found.num_zeros) == (5, 2, 1)
    assert (found.energy, found.largest, found.zeros) == (25.0, 4.0, 0.2)
    assert found.rms == pytest.approx(math.sqrt(25 / 3))
    assert profile(torch.tensor([math.nan])).rms == 0.0
    assert profile(torch.full((2, 2), 3e38)).energy == pytest.approx(3.6e77)
