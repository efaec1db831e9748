"""Quantities: every accepted form, every refused one, and formatting that reads back."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinwire.errors import ConfigError
from thinwire.quantities import (
    format_bit_rate,
    format_bytes,
    format_count,
    format_duration,
    format_figure,
    format_numbered,
    format_share,
    parse_bit_rate,
    parse_byte_rate,
    parse_bytes,
    parse_count,
    parse_duration,
)

# Three significant digits: the last one is off by half a unit at most, 0.5 of 100.
ROUNDING = 0.005

Parser = Callable[[str], float]

PARSERS: list[Parser] = [parse_bit_rate, parse_byte_rate, parse_duration, parse_bytes, parse_count]


@pytest.mark.parametrize(
    ("text", "bit_per_s"),
    [
        ("200mbit", 200e6),
        ("200Mbit", 200e6),
        ("200 Mbit/s", 200e6),
        ("100gbit", 100e9),
        ("64kbit", 64e3),
        ("1tbit", 1e12),
        ("9600bit", 9600.0),
        ("1.5gbit", 1.5e9),
        (".5gbit", 0.5e9),
        ("300GB/s", 2400e9),
        ("1kB/s", 8e3),
        ("1KB/s", 8e3),
        ("1KiB/s", 8 * 1024.0),
        ("10GiB/s", 80 * 1024.0**3),
        (" 1e3mbit ", 1e9),
    ],
)
def test_bit_rate(text: str, bit_per_s: float) -> None:
    assert parse_bit_rate(text) == bit_per_s
    assert parse_byte_rate(text) == bit_per_s / 8


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("20us", 20e-6),
        ("20\u00b5s", 20e-6),
        ("20\u03bcs", 20e-6),
        ("20 \u03bcs", 20e-6),
        ("10ms", 0.01),
        ("1.5s", 1.5),
        ("2min", 120.0),
        ("1h", 3600.0),
        ("500 ns", 500e-9),
    ],
)
def test_duration(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("40GB", 40 * 10**9),
        ("16GiB", 16 * 2**30),
        ("0.1GB", 10**8),  # exact in decimal, not in binary floating point
        ("512 B", 512),
        ("1KiB", 1024),
        ("2TB", 2 * 10**12),
    ],
)
def test_bytes(text: str, size_bytes: int) -> None:
    assert parse_bytes(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "count"),
    [("1e6", 10**6), ("1.3B", 13 * 10**8), ("125M", 125 * 10**6), ("7", 7), ("1T", 10**12)],
)
def test_count(text: str, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "mbit",
        "nan",
        "nan mbit",
        "inf s",
        "-1",
        "-1mbit",
        "-5ms",
        "-1GB",
        "1,5GB",
        "0x10",
        "1 2",
    ],
)
def test_what_is_no_positive_number_is_refused(parse: Parser, text: str) -> None:
    with pytest.raises(ConfigError, match="write "):
        parse(text)


@pytest.mark.parametrize(
    ("parse", "zero"),
    list(zip(PARSERS, ["0mbit", "0GB/s", "0ms", "0GB", "0.0"], strict=True)),
)
def test_zero_is_refused(parse: Parser, zero: str) -> None:
    with pytest.raises(ConfigError, match="more than zero"):
        parse(zero)


@pytest.mark.parametrize("parse", [parse_bit_rate, parse_byte_rate, parse_duration, parse_bytes])
def test_a_missing_unit_is_refused_and_the_forms_are_shown(parse: Parser) -> None:
    with pytest.raises(ConfigError, match=r"unit is missing; write .* such as "):
        parse("200")


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_bit_rate, "200mb"),  # bits or bytes?
        (parse_bit_rate, "200MB"),  # a size, no rate
        (parse_bit_rate, "200Mb/s"),
        (parse_bit_rate, "200mbit/s/s"),
        (parse_bit_rate, "200Kibit"),
        (parse_byte_rate, "20ms"),
        (parse_duration, "20mbit"),
        (parse_duration, "20m"),  # minutes or milli?
        (parse_bytes, "16gb"),
        (parse_bytes, "16GB/s"),
        (parse_bytes, "16Gbit"),
        (parse_count, "16GB"),
        (parse_count, "5m"),
    ],
)
def test_a_unit_of_something_else_is_refused(parse: Parser, text: str) -> None:
    with pytest.raises(ConfigError, match="not known here"):
        parse(text)


@pytest.mark.parametrize(("parse", "text"), [(parse_bytes, "0.3B"), (parse_count, "1.5")])
def test_parts_of_a_whole_are_refused(parse: Parser, text: str) -> None:
    with pytest.raises(ConfigError, match="whole number"):
        parse(text)


@pytest.mark.parametrize("text", ["1e999mbit", "1e99999999mbit", "9" * 10_000 + "mbit", "1e-99s"])
@pytest.mark.parametrize("parse", PARSERS)
def test_absurd_amounts_are_refused_briefly(parse: Parser, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    # One line on a terminal, whatever was typed.
    assert len(str(caught.value)) < 250


@given(st.floats(min_value=1e-3, max_value=1e15))
def test_formatted_bit_rates_read_back(rate: float) -> None:
    assert math.isclose(parse_bit_rate(format_bit_rate(rate)), rate, rel_tol=ROUNDING)


@given(st.floats(min_value=1e-12, max_value=1e9))
def test_formatted_durations_read_back(duration: float) -> None:
    assert math.isclose(parse_duration(format_duration(duration)), duration, rel_tol=ROUNDING)


@given(st.integers(min_value=1, max_value=10**24))
def test_formatted_sizes_read_back(size: int) -> None:
    assert math.isclose(parse_bytes(format_bytes(size)), size, rel_tol=ROUNDING)


@given(st.integers(min_value=1, max_value=10**24))
def test_formatted_counts_read_back(count: int) -> None:
    assert math.isclose(parse_count(format_count(count)), count, rel_tol=ROUNDING)


@given(st.integers(min_value=1, max_value=10**15), st.sampled_from(["B", "kB", "MB", "GB", "KiB"]))
def test_whole_sizes_are_exact(number: int, unit: str) -> None:
    factor = {"B": 1, "kB": 1000, "MB": 10**6, "GB": 10**9, "KiB": 1024}[unit]
    if number * factor <= 10**24:
        assert parse_bytes(f"{number}{unit}") == number * factor


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (format_bytes(0), "0 B"),
        (format_bytes(999_999), "1 MB"),  # and not 1000 kB
        (format_bytes(1_234_567), "1.23 MB"),
        (format_bytes(5e15), "5000 TB"),
        (format_bit_rate(200e6), "200 Mbit/s"),
        (format_duration(0), "0 s"),
        (format_duration(20e-6), "20 us"),
        (format_duration(59.99), "1 min"),
        (format_duration(90), "1.5 min"),
        (format_count(19_000_000), "19M"),
        (format_count(256), "256"),
        (format_bytes(-1.5e9), "-1.5 GB"),
        (format_count(1e24), "1e24"),
        (format_count(1.92e20), "1.92e20"),
        (format_bytes(1.92e20), "1.92e20 B"),
        (format_count(5e15), "5000T"),
        (format_share(1e-9), "0.0000001%"),
        (format_share(0.01), "1%"),
        (format_share(0.12345), "12.3%"),
        (format_figure(16_000.0, 4), "16000"),
        (format_figure(1.5, 4), "1.5"),
        (format_figure(0.000123456, 4), "0.0001235"),
        (format_numbered(1, "sequence"), "1 sequence"),
        (format_numbered(32, "sequence"), "32 sequences"),
        (format_numbered(0, "rank"), "0 ranks"),
        (format_numbered("1", "parameter"), "1 parameter"),
        (format_numbered("1k", "parameter"), "1k parameters"),
    ],
)
def test_formats_for_people(text: str, expected: str) -> None:
    assert text == expected
