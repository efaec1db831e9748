"""The grammar of formats, and the arithmetic of their bytes."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinwire.errors import FormatError
from thinwire.formats import WireFormat, parse_format, plane_widths
from wire_cases import ALL, BLOCKED, CASTS

BLOCKED_AND_CASTS = (*CASTS, *BLOCKED)


@pytest.mark.parametrize("text", ALL)
def test_text_and_format_are_the_same_thing(text: str) -> None:
    fmt = parse_format(text)
    assert str(fmt) == text
    assert parse_format(str(fmt)) == fmt
    assert hash(parse_format(text)) == hash(fmt)


def test_the_order_of_options_means_nothing() -> None:
    assert parse_format("int4/64+bf16scale+asym") == parse_format("int4/64+asym+bf16scale")
    assert str(parse_format("int4/64+bf16scale+asym")) == "int4/64+asym+bf16scale"


def test_a_block_that_is_left_out_is_128_and_printed() -> None:
    assert str(parse_format("int4")) == "int4/128"
    assert str(parse_format(" e4m3 ")) == "e4m3/128"
    assert parse_format("bf16").block is None


def test_parts_of_a_format() -> None:
    fmt = parse_format("int4/256+asym+stochastic")
    assert (fmt.family, fmt.bits, fmt.block, fmt.name) == ("int", 4, 256, "int4")
    assert fmt.options == {"asym", "stochastic"}
    assert fmt.is_stochastic
    assert not fmt.is_cast
    assert parse_format("int8+shift").is_stochastic
    assert not parse_format("e4m3").is_stochastic
    assert parse_format("bf16").is_cast


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("int9", r"unknown format 'int9': use one of fp32, .*int2\.\.int8"),
        ("int", "unknown format 'int'"),
        ("int1", "unknown format 'int1'"),
        ("int04", "unknown format 'int04'"),
        ("INT4", "unknown format 'INT4'"),
        ("", "a format without a name: use one of"),
        ("+int4", "a format without a name: use one of"),
        ("/128", "a format without a name: use one of"),
        ("int4/12", "nearest is 'int4/16'"),
        ("int4/3", "nearest is 'int4/8'"),
        ("int4/0", "nearest is 'int4/8'"),
        ("int4/1048577", "nearest is 'int4/1048576'"),
        ("int4/9999999", "nearest is 'int4/1048576'"),
        ("int4/", "must be a number of elements, not ''"),
        ("int4/-8", "must be a number of elements, not '-8'"),
        ("int4/8/8", "must be a number of elements, not '8/8'"),
        ("int4/" + "9" * 5000, "blocks have 8 to 1048576; the largest is 'int4/1048576'"),
        ("int4/٨", "must be a number of elements"),  # an Arabic eight is a digit to Python
        ("bf16/128", "bf16 is a plain cast and has no blocks: write 'bf16'"),
        ("bf16+asym", r"bf16 cannot have \+asym: it can have no options"),
        ("e4m3+asym", r"e4m3 cannot have \+asym: it can have \+stochastic, .*\+bf16scale"),
        ("int4+fast", r"int4 cannot have \+fast: it can have \+asym"),
        ("int4+", r"int4 cannot have \+: it can have"),
        ("int4+asym+asym", r"gives \+asym twice"),
        ("int4+shift+stochastic", r"cannot have both \+stochastic and \+shift"),
        ("int4+shift+asym", r"cannot have both \+asym and \+shift"),
        (
            "int4+clip=95+stochastic",
            r"both \+clip and \+stochastic: what is cut off is off on average",
        ),
        ("log4+stochastic+clip=95", r"both \+clip and \+stochastic"),
    ],
)
def test_what_is_wrong_is_said_with_what_to_write(text: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        parse_format(text)


@given(st.text(alphabet="abefintp0123468/+ ", max_size=24))
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        fmt = parse_format(text)
    except FormatError:
        return
    assert parse_format(str(fmt)) == fmt


def test_a_format_built_by_hand_is_checked_like_a_text() -> None:
    with pytest.raises(FormatError, match="needs a block size"):
        WireFormat(family="int", bits=4)
    with pytest.raises(FormatError, match="unknown format 'int9'"):
        WireFormat(family="int", bits=9, block=128)
    with pytest.raises(FormatError, match="has no blocks"):
        WireFormat(family="fp32", bits=32, block=128)


@pytest.mark.parametrize(
    ("text", "numel", "wire_bytes"),
    [
        ("fp32", 5, 20),
        ("bf16", 4, 8),
        ("bf16", 5, 12),  # 10 bytes, rounded up to a multiple of 4
        ("int8/128", 128, 4 + 128),
        ("int4/128", 128, 4 + 64),
        ("int4/128", 129, 8 + 64 + 1 + 3),  # a ragged block of 1: scale, one byte, three of padding
        ("int4/128+asym", 128, 4 + 4 + 64),
        ("int4/128+shift", 256, 4 + 8 + 128),
        ("int4/128+bf16scale", 256, 4 + 128),
        ("int4/128+bf16scale", 128, 2 + 64 + 2),
        ("int3/8", 8, 4 + 2 + 1 + 1),  # planes of width 2 and 1
        ("int7/8", 5, 4 + 3 + 2 + 1 + 2),  # planes of width 4, 2 and 1 of five elements
        ("e4m3/64", 100, 8 + 100),
        ("int8/1048576", 1 << 30, 4 * 1024 + (1 << 30)),
    ],
)
def test_bytes_by_hand(text: str, numel: int, wire_bytes: int) -> None:
    assert parse_format(text).wire_bytes(numel) == wire_bytes


@given(st.sampled_from(BLOCKED_AND_CASTS), st.integers(0, 3000))
def test_bytes_follow_from_blocks_one_by_one(text: str, numel: int) -> None:
    fmt = parse_format(text)
    layout = fmt.layout(numel)
    if fmt.is_cast:
        blocks = [numel]
    else:
        assert fmt.block is not None
        blocks = [min(fmt.block, numel - start) for start in range(0, numel, fmt.block)]
    bits_of_block = [sum(-(-size * width // 8) * 8 for width in _planes(fmt)) for size in blocks]
    assert layout.codes_bytes * 8 == sum(bits_of_block)
    assert layout.codes_end <= layout.total_bytes < layout.codes_end + 4
    assert fmt.wire_bytes(numel) == layout.total_bytes
    assert layout.total_bytes % 4 == 0
    assert fmt.wire_bytes(0) == 0


def _planes(fmt: WireFormat) -> tuple[int, ...]:
    return (fmt.bits,) if fmt.is_cast else plane_widths(fmt.bits)


def test_planes_sum_to_the_bits_and_divide_a_byte() -> None:
    for bits in range(1, 9):
        assert sum(plane_widths(bits)) == bits
        assert all(8 % width == 0 for width in plane_widths(bits))


def test_bits_per_element() -> None:
    assert parse_format("int4/128").bits_per_element(1280) == 4.25
    assert parse_format("int4/128+bf16scale").bits_per_element(1280) == 4.125
    with pytest.raises(FormatError, match="at least one element"):
        parse_format("int4").bits_per_element(0)
    with pytest.raises(FormatError, match="give 0 or more"):
        parse_format("int4").wire_bytes(-1)


def test_formats_load_neither_torch_nor_numpy() -> None:
    code = "import sys, thinwire.formats; print('torch' in sys.modules, 'numpy' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "False"]


@pytest.mark.parametrize("text", BLOCKED_AND_CASTS)
def test_the_bits_of_a_whole_block_are_those_of_a_long_tensor(text: str) -> None:
    fmt = parse_format(text)
    numel = (fmt.block or 1) * 10_000
    # all that a tensor has besides its blocks: a head of at most 128 bytes and the padding
    assert 0 <= fmt.bits_per_element(numel) - fmt.block_bits <= 8 * (128 + 3) / numel
