"""Laws of single families: what each one promises beyond the common contract."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from thinwire.errors import ConfigError, FormatError
from thinwire.formats import parse_format
from thinwire.wire import Key, codec_for, decode, encode
from thinwire.wire.logarithm import LogLevels
from thinwire.wire.reference.rotation import rotate, rotated, unrotated
from thinwire.wire.reference.sign import fold
from wire_bounds import error_bound
from wire_cases import CLIPPED, FLOAT8, KEY, LOGARITHMIC, ROTATED, SIGN, SPARSE, encoded, tensors


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# Random rounding of a rotated or logarithmic value may move the largest of a block, and with it
# the scale, and so does a zero point with clipping; learned levels are learned anew.
@pytest.mark.parametrize(
    "text",
    [
        text
        for text in (*LOGARITHMIC, *SIGN, *CLIPPED, *ROTATED, *SPARSE)
        if not {"asym", "levels"} & set(text.split("+"))
        and not (
            ("hadamard" in text or "log" in text) and ("stochastic" in text or "shift" in text)
        )
    ],
)
def test_encoding_what_was_decoded_gives_the_same_bytes(text: str) -> None:
    for name, x in tensors(300, torch.float32):
        if "hadamard" in text and name in ("denormal", "huge"):
            continue  # rotating back rounds there, at the ends of what float32 can hold
        payload = encode(x, text, key=KEY)
        again = encode(decode(payload), text, key=KEY)
        assert torch.equal(payload.bytes, again.bytes), name


@pytest.mark.parametrize("text", [*SIGN, *FLOAT8, *ROTATED])
def test_encoding_what_was_decoded_decodes_to_the_same_values_where_there_are_zeros(
    text: str,
) -> None:
    fmt = parse_format(text)
    if fmt.is_stochastic or fmt.options & {"asym", "levels"}:
        return
    x = normal(3200) * (torch.rand(3200, generator=torch.Generator().manual_seed(9)) < 0.02)
    for values in (x, -x, torch.full((300,), -0.0), torch.zeros(300)):
        payload = encode(values, fmt)
        again = encode(decode(payload), fmt)
        assert torch.equal(decode(payload), decode(again))
        # a code has the sign of a zero, which rotating to and fro does not keep
        if "hadamard" not in fmt.options or fmt.family in ("int", "log"):
            assert torch.equal(payload.bytes, again.bytes)


@pytest.mark.parametrize(
    "text", ["log4/64+stochastic", "log8/64+stochastic", "int4/64+hadamard+stochastic"]
)
def test_random_rounding_is_right_on_average(text: str) -> None:
    x, num_draws = normal(128), 2000
    total, squares = torch.zeros(128, dtype=torch.float64), torch.zeros(128, dtype=torch.float64)
    for step in range(num_draws):
        error = (decode(encode(x, text, key=Key(seed=1, step=step))) - x).double()
        total += error
        squares += error**2
    mean, sigma = total / num_draws, (squares / num_draws).sqrt()
    # Bernstein's inequality for 128 elements, a chance of one in a million each. Its second term
    # counts where a value lies so close to a level that the other one hardly ever occurs.
    fmt = parse_format(text)
    gap = error_bound(fmt, encode(x, fmt, key=KEY).bytes, x)
    bound = 5.3 * sigma / math.sqrt(num_draws) + gap * 9.3 / num_draws
    assert (mean.abs() <= bound).all()


@pytest.mark.parametrize("bits", range(4, 9))
def test_logarithmic_levels_grow_by_a_root_of_two(bits: int) -> None:
    levels = LogLevels.of(parse_format(f"log{bits}")).levels
    assert len(levels) == 2 ** (bits - 1)
    assert levels[:2] == (0.0, 1.0)
    ratio = 2 ** (1 / 2 ** (bits - 4))
    for index, level in enumerate(levels[1:]):
        assert level == pytest.approx(ratio**index, rel=2.0**-8)  # 8 significant bits
        mantissa, _ = math.frexp(level)
        assert mantissa * 2**8 == int(mantissa * 2**8)


def test_the_scale_of_signs_is_the_mean_magnitude_and_loses_least() -> None:
    x = normal(4, 128)
    again = decode(encode(x, "sign/128"))
    assert torch.equal(again.sign(), x.sign())
    mean = x.abs().mean(dim=1)
    assert again[:, 0].abs().tolist() == pytest.approx(mean.tolist(), rel=2.0**-16)
    lost = (again - x).square().sum(dim=1)
    assert lost.tolist() == pytest.approx(
        (x.square().sum(dim=1) - 128 * mean**2).tolist(), rel=1e-4
    )


@pytest.mark.parametrize("width", [1, 2, 3, 24, 37, 128])
def test_the_order_of_the_sum_of_magnitudes(width: int) -> None:
    row = normal(width).abs()
    values, half = row.tolist(), 1
    while half < width:
        half *= 2
    values += [0.0] * (half - width)
    while half > 1:
        half //= 2
        pairs = [torch.tensor([values[i], values[half + i]]) for i in range(half)]
        values = [float(pair[0] + pair[1]) for pair in pairs]
    assert float(fold(row.unsqueeze(0))) == values[0]


def test_rotating_twice_is_the_identity_to_rounding() -> None:
    x = normal(5, 96 + 7)
    length = x.norm(dim=1, keepdim=True)
    assert ((rotate(rotate(x)) - x).abs() <= length * 10 * 2.0**-24).all()  # ten stages of sums
    assert torch.equal(rotate(x)[:, 96:], x[:, 96:])
    kept = rotate(x).double().norm(dim=1)
    assert kept.tolist() == pytest.approx(x.double().norm(dim=1).tolist(), rel=1e-6)
    unit = torch.zeros(1, 32)
    unit[0, 5] = 1.0
    assert (rotate(unit).abs() - 32**-0.5).abs().max() < 1e-7


def test_rotation_spares_a_block_its_outlier() -> None:
    x = normal(64, 128)
    x[:, 17] = 40.0
    plain = (decode(encode(x, "int4/128")) - x).norm()
    spread = (decode(encode(x, "int4/128+hadamard")) - x).norm()
    assert spread < 0.7 * plain


def test_rotation_of_the_largest_floats_stays_finite() -> None:
    x = torch.full((1, 64), 3.4e38) * normal(1, 64).sign()
    assert unrotated(rotated(x)).clamp(-3.4e38, 3.4e38).isfinite().all()


def test_inner_rotations_cancel_across_a_sum() -> None:
    parts = [normal(3, 64, seed=seed) for seed in range(4)]
    inside = unrotated(sum((rotated(part) for part in parts), torch.zeros(3, 64)))
    assert torch.allclose(inside, sum(parts, torch.zeros(3, 64)), atol=1e-5)


def test_clipping_takes_the_scale_from_the_percentile() -> None:
    x = torch.arange(1.0, 101.0).repeat(2)[:160]
    x[3] = 1e6  # one of the 16 largest of its block of 160, of which +clip=90 cuts off 16
    fmt = parse_format("int8/160+clip=90")
    payload = encode(x, fmt)
    largest = x.abs().sort().values[160 - 16 - 1]
    assert decode(payload).abs().max() == pytest.approx(float(largest), rel=2.0**-15)


def test_topk_keeps_the_largest_and_the_first_of_equal_ones() -> None:
    x = torch.zeros(1000)
    x[[900, 20, 500, 30]] = torch.tensor([-3.0, 2.0, 2.0, 2.0])
    again = decode(encode(x, "topk=0.003"))
    assert again.nonzero().view(-1).tolist() == [20, 30, 900]
    assert again[900] == -3.0


def test_topk_shows_nan_and_inf_where_they_were() -> None:
    x = normal(1000)
    x[7], x[11] = math.nan, -math.inf
    again = decode(encode(x, "topk=0.01"))
    assert again[7].isnan()
    assert again[11] == -math.inf
    assert int((again != 0).sum()) == 10


@pytest.mark.parametrize("share", ["0.001", "0.01", "0.0625", "0.07", "0.5"])
def test_topk_takes_the_cheaper_form_and_counts_it(share: str) -> None:
    numel = 200_001  # four stretches, the last one ragged
    fmt = parse_format(f"topk={share}")
    layout = fmt.sparse_layout(numel)
    kept = math.ceil(float(share) * numel - 1e-9)
    assert layout.num_kept == kept
    positions_bytes = min(-(-numel // 8), 4 * 4 + 2 * kept)
    assert fmt.wire_bytes(numel) == -(-(4 * kept + positions_bytes) // 4) * 4
    x = normal(numel)
    again = decode(encode(x, fmt))
    kept_at = again.nonzero().view(-1)
    assert kept_at.numel() == kept
    assert torch.equal(again[kept_at], x[kept_at])
    assert set(kept_at.tolist()) == set(x.abs().topk(kept).indices.tolist())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("topk", "topk needs a number of at most 12 characters, not ''"),
        ("topk=0", "between 0 and 1, not 0"),
        ("topk=1", "between 0 and 1, not 1"),
        ("topk=1e-3", "without an exponent or a sign: write 0.001, not '1e-3'"),
        ("int4+clip=9.9e1", "write 99, not '9.9e1'"),
        ("topk=1e-30", "at most 12 characters, not '1e-30'"),
        ("topk=0.1/8", "topk has no blocks"),
        ("topk=0.1+hadamard", "it can have no options"),
        ("lowrank", "needs a whole rank of at most 6 digits, not ''"),
        ("lowrank=0", "a rank of 1 or more"),
        ("lowrank=4/64", "rows and columns of at most 12 digits, not '64'"),
        ("int4+clip", "clip needs its number"),
        ("int4+clip=100", "from 50 to below 100"),
        ("int4+clip=99.9", "cuts nothing off a block of 128"),
        ("int4+asym+clip=99", "cuts nothing off a block of 128"),
        ("int4+asym=3", "takes no number"),
        ("int4+shift+clip=90", "only when nothing is cut off"),
        ("int4/40+hadamard", "nearest is 'int4/32'"),
        ("int8+levels", "chosen from the 255 of int8"),
        ("int4+levels+stochastic", "rounding to the nearest"),
        ("log3", "unknown format 'log3'"),
        ("sign+stochastic", r"it can have \+hadamard, \+bf16scale"),
    ],
)
def test_what_no_family_has_is_refused(text: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        parse_format(text)


@pytest.mark.parametrize("options", ["", "+asym"])
@pytest.mark.parametrize("block", [8, 24, 64, 128, 1000])
def test_the_percentile_that_a_refusal_names_is_taken(block: int, options: str) -> None:
    with pytest.raises(FormatError, match="write at most") as refused:
        parse_format(f"int4/{block}{options}+clip=99.999")
    named = str(refused.value).split("at most ")[1].split(" percent")[0]
    parse_format(f"int4/{block}{options}+clip={named}")


def test_numbers_are_printed_as_short_as_they_can_be() -> None:
    assert str(parse_format("topk=0.0100")) == "topk=0.01"
    assert parse_format("topk=.01") == parse_format("topk=0.010")
    assert str(parse_format("int4/64+clip=90.0")) == "int4/64+clip=90"


def test_low_rank_needs_the_shape_of_the_matrix() -> None:
    fmt = parse_format("lowrank=4")
    with pytest.raises(FormatError, match=r"use wire_bytes_of\(shape\)"):
        fmt.wire_bytes(1000)
    assert fmt.wire_bytes_of((100, 30)) == 4 * 4 * 130
    assert fmt.wire_bytes_of((100, 3, 10)) == 4 * 4 * 130
    assert fmt.wire_bytes_of((2, 30)) == 4 * 2 * 32  # a matrix of two rows has rank two
    bound = fmt.for_shape((100, 30))
    assert str(bound) == "lowrank=4/100x30"
    assert parse_format(str(bound)) == bound
    with pytest.raises(FormatError, match="is for 3000 elements, not 10"):
        bound.wire_bytes(10)
    with pytest.raises(FormatError, match="needs a matrix"):
        encode(torch.ones(5), "lowrank=1")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_low_rank_is_exact_for_what_has_that_rank(dtype: torch.dtype) -> None:
    x = (normal(60, 3, seed=1) @ normal(3, 40, seed=2)).to(dtype)
    payload = encode(x, "lowrank=3")
    assert payload.bytes.numel() == 4 * 3 * 100
    error = (decode(payload).double() - x.double()).norm() / x.double().norm()
    # Two power steps in float32; a 16-bit matrix has a full-rank part of the size of its rounding.
    assert error < 1e-5 + 4 * torch.finfo(dtype).eps
    assert decode(payload).dtype == dtype


def test_low_rank_never_adds_and_comes_close_to_the_best() -> None:
    x = normal(50, 70) @ torch.diag(0.5 ** torch.arange(70.0))
    error = (decode(encode(x, "lowrank=8")) - x).norm()
    best = torch.linalg.svdvals(x)[8:].norm()
    assert best <= error * (1 + 1e-5)
    assert error < 1.5 * best  # two steps, and no columns to spare: seen 1.4
    assert error < x.norm()


@pytest.mark.parametrize("fill", [0.0, 3e38, 1e-42])
def test_low_rank_of_extreme_matrices_stays_finite(fill: float) -> None:
    x = torch.full((20, 30), fill)
    again = decode(encode(x, "lowrank=2"))
    assert again.isfinite().all()
    assert (again - x).abs().max() <= fill * 1e-5 + 1e-43
    bad = x.clone()
    bad[3, 4] = math.inf
    assert decode(encode(bad, "lowrank=2")).isnan().all()


def test_low_rank_sums_in_order() -> None:
    fmt = parse_format("lowrank=2").for_shape((9, 7))
    codec = codec_for(fmt, torch.device("cpu"))
    payloads = [encoded(codec, normal(63, seed=seed)) for seed in range(3)]
    total, part = torch.empty(63), torch.empty(63)
    codec.decode_sum_into(payloads, total)
    expected = torch.zeros(63)
    for payload in payloads:
        codec.decode_into(payload, part)
        expected += part
    assert torch.equal(total, expected)
    with pytest.raises(ConfigError, match="bytes"):
        codec.decode_into(payloads[0][:-4], part)
