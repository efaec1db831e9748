"""How scales round."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thinwire.wire.scales import FLOAT32_MAX, SMALLEST_SCALE, ScaleRule, inverse_of

POSITIVE = st.floats(min_value=SMALLEST_SCALE, max_value=2.0**122, width=32)


def _round(value: float, rule: ScaleRule) -> float:
    return rule.round(torch.tensor([value]), torch.tensor([True])).item()


@given(POSITIVE, st.booleans())
def test_scales_have_few_bits_and_the_right_direction(value: float, narrow: bool) -> None:
    bits = 8 if narrow else 16
    up = _round(value, ScaleRule.for_levels(reach=1, narrow=narrow, up=True))
    nearest = _round(value, ScaleRule.for_levels(reach=1, narrow=narrow, up=False))
    for scale in (up, nearest):
        mantissa, _ = math.frexp(scale)
        assert (mantissa * 2**bits).is_integer()
    assert value <= up < value * (1 + 2.0 ** (1 - bits))
    assert abs(nearest - value) <= value * 2.0**-bits
    if narrow:
        assert torch.tensor(up).bfloat16().item() == up


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("reach", [1, 7, 127.5, 255, 448, 57344])
def test_what_decoding_reaches_stays_finite(narrow: bool, reach: float) -> None:
    for up in (False, True):
        rule = ScaleRule.for_levels(reach=reach, narrow=narrow, up=up)
        scale = _round(FLOAT32_MAX, rule)
        assert scale * reach <= FLOAT32_MAX
        assert scale == rule.largest


def test_too_small_is_zero_and_not_finite_is_nan() -> None:
    rule = ScaleRule.for_levels(reach=7, narrow=False, up=True)
    assert _round(SMALLEST_SCALE, rule) == SMALLEST_SCALE
    assert _round(math.nextafter(SMALLEST_SCALE, 0), rule) == SMALLEST_SCALE  # a float64: rounds
    assert _round(SMALLEST_SCALE * (1 - 2.0**-24), rule) == 0
    assert _round(0.0, rule) == 0
    scales = rule.round(torch.tensor([1.0, 1.0]), torch.tensor([True, False]))
    assert scales[0] == 1
    assert scales[1].isnan()


def test_zero_and_nan_scales_multiply_by_zero() -> None:
    inverses = inverse_of(torch.tensor([2.0, 0.0, math.nan, SMALLEST_SCALE]))
    assert inverses.tolist() == [0.5, 0.0, 0.0, 2.0**125]
