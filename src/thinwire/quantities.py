"""Quantities as people write them, and back: rates, durations, sizes, counts.

One grammar for every option, file and message: a number, then a unit, a space between them allowed.

    bit rate     200mbit   1.5 Gbit/s   300GB/s   10MiB/s     -> float, bit/s
    duration     20us      10 ms        1.5s      2min        -> float, s
    size         40GB      16GiB        512 B                 -> int, bytes
    count        1e6       125M         1.3B                  -> int

`k M G T` are powers of 1000, `Ki Mi Gi Ti` powers of 1024. `bit` units are taken in any case, for
network people write `mbit` and `Mbit` for the same thing; byte units end in a capital `B` and are
taken in no other case, so that `mb`, which means either, is refused.

The `format_*` functions write three significant digits in a form that the parser reads again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import NoReturn

from thinwire.errors import ConfigError
from thinwire.quoting import quoted

__all__ = [
    "format_bit_rate",
    "format_bytes",
    "format_count",
    "format_duration",
    "format_figure",
    "format_numbered",
    "format_share",
    "parse_bit_rate",
    "parse_byte_rate",
    "parse_bytes",
    "parse_count",
    "parse_duration",
]

_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]{1,3})? ?([A-Za-zµ/]*)", re.I)

# Two characters look alike: the sign on keyboards, and the letter that others type for it.
_MICRO, _GREEK_MU = "\u00b5", "\u03bc"

# Nothing that is measured here is larger, and a longer integer would only cost time to print.
_LARGEST_TEXT, _SMALLEST_TEXT = "1e24", "1e-24"
_LARGEST = Decimal(_LARGEST_TEXT)
# Below this a quantity is a slip of the hand; it also keeps every result far from a denormal float.
_SMALLEST = Decimal(_SMALLEST_TEXT)

MOST_OF_A_UNIT = 1e6  # 999,999 TB is still a number of disks

_SI = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}

_BYTES = {f"{prefix}B": factor for prefix, factor in {**_SI, "K": 10**3, **_BINARY}.items()}
_BYTE_RATES = {f"{unit}/s": 8 * factor for unit, factor in _BYTES.items()}
_BIT_RATES = {f"{prefix.lower()}bit": factor for prefix, factor in _SI.items()}
_DURATIONS = {
    "ns": Decimal("1e-9"),
    "us": Decimal("1e-6"),
    "µs": Decimal("1e-6"),
    "ms": Decimal("1e-3"),
    "s": Decimal(1),
    "min": Decimal(60),
    "h": Decimal(3600),
}
_COUNTS = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}

_BIT_RATE_FORMS = "bits per second such as 200mbit or 100gbit, bytes per second such as 300GB/s"
_DURATION_FORMS = "a duration such as 20us, 10ms or 1.5s"
_BYTES_FORMS = "bytes such as 40GB (powers of 1000) or 16GiB (powers of 1024)"
_COUNT_FORMS = "a whole number such as 1000000, 1e6, 125M or 1.3B"
_BASE_UNITS = {
    _BIT_RATE_FORMS: " bit/s",
    _DURATION_FORMS: " s",
    _BYTES_FORMS: " B",
    _COUNT_FORMS: "",
}


def parse_bit_rate(text: str) -> float:
    """Read a bandwidth and return it in bit/s.

    `200mbit`, `1.5Gbit/s` are bits per second, `300GB/s`, `10MiB/s` bytes per second (times 8).

    Raises:
        ConfigError: no number, no unit, an ambiguous unit, or not above zero.
    """
    number, unit = _split(text, "bandwidth", _BIT_RATE_FORMS)
    factor = _BYTE_RATES.get(unit) or _BIT_RATES.get(unit.lower().removesuffix("/s"))
    if factor is None:
        _refuse(text, "bandwidth", _unit_fault(unit), _BIT_RATE_FORMS)
    return float(_in_range(number * factor, text, "bandwidth", _BIT_RATE_FORMS))


def parse_byte_rate(text: str) -> float:
    """Read a bandwidth as `parse_bit_rate` does and return it in bytes/s."""
    return parse_bit_rate(text) / 8


def parse_duration(text: str) -> float:
    """Read a duration (`ns us ms s min h`) and return it in seconds.

    Raises:
        ConfigError: no number, no unit, an unknown unit, or not above zero.
    """
    return float(_parse(text, "duration", _DURATIONS, _DURATION_FORMS))


def parse_bytes(text: str) -> int:
    """Read a size (`B`, `kB` to `TB`, `KiB` to `TiB`) and return it in bytes.

    Raises:
        ConfigError: no number, no unit, an unknown unit, not above zero, or not whole bytes.
    """
    return _whole(_parse(text, "size", _BYTES, _BYTES_FORMS), text, "size", _BYTES_FORMS)


def parse_count(text: str, *, noun: str = "count") -> int:
    """Read a count, alone or with `k M B T` (thousand, million, billion, 1e12).

    Args:
        text: as a user wrote it.
        noun: what it is a count of, for messages.

    Raises:
        ConfigError: no number, an unknown unit, not above zero, or not whole.
    """
    return _whole(_parse(text, noun, _COUNTS, _COUNT_FORMS), text, noun, _COUNT_FORMS)


def format_bytes(size_bytes: float) -> str:
    """Write a size for people, in powers of 1000: `1.23 MB`."""
    return _format(size_bytes, {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}, " ")


def format_bit_rate(rate_bit_per_s: float) -> str:
    """Write a bandwidth for people: `200 Mbit/s`."""
    units = {"bit/s": 1, "kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9, "Tbit/s": 1e12}
    return _format(rate_bit_per_s, units, " ")


def format_duration(duration_s: float) -> str:
    """Write a duration for people: `20 us`, `1.5 s`, `2.5 min`."""
    units = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600}
    return _format(duration_s, units, " ")


def format_count(count: float) -> str:
    """Write a count for people: `125M`, `1.3B`."""
    return _format(count, {"": 1, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}, "")


def format_share(share: float) -> str:
    """Write a share in per cent for people: `0.1%`, and `0.0000001%` where it is that small."""
    return f"{format_figure(100 * share)}%"


def format_figure(value: float, digits: int = 3) -> str:
    """Write a number with so many significant digits and without an exponent: `16000`."""
    return f"{Decimal(f'{value:.{digits}g}'):f}"


def format_numbered(number: int | str, noun: str) -> str:
    """Write how many there are of something: `1 sequence`, `32 sequences`, `1.3B parameters`."""
    return f"{number} {noun}" if str(number) == "1" else f"{number} {noun}s"


def _parse(text: str, noun: str, units: Mapping[str, Decimal | int], forms: str) -> Decimal:
    number, unit = _split(text, noun, forms)
    if unit not in units:
        _refuse(text, noun, _unit_fault(unit), forms)
    return _in_range(number * units[unit], text, noun, forms)


def _split(text: str, noun: str, forms: str) -> tuple[Decimal, str]:
    match = _QUANTITY.fullmatch(text.strip().replace(_GREEK_MU, _MICRO))
    if match is None:
        _refuse(text, noun, "this is not a positive number with a unit", forms)
    digits, exponent, unit = match.groups()
    return Decimal(digits + (exponent or "")), unit


def _in_range(value: Decimal, text: str, noun: str, forms: str) -> Decimal:
    if value == 0:
        _refuse(text, noun, "it must be more than zero", forms)
    if not _SMALLEST <= value <= _LARGEST:
        bound = f"at most {_LARGEST_TEXT}" if value > _LARGEST else f"at least {_SMALLEST_TEXT}"
        _refuse(text, noun, f"it must be {bound}{_BASE_UNITS[forms]}", forms)
    return value


def _whole(value: Decimal, text: str, noun: str, forms: str) -> int:
    if value != int(value):
        _refuse(text, noun, "it must be a whole number", forms)
    return int(value)


def _unit_fault(unit: str) -> str:
    return f"the unit {quoted(unit)} is not known here" if unit else "the unit is missing"


def _refuse(text: str, noun: str, fault: str, forms: str) -> NoReturn:
    raise ConfigError(f"{noun} {quoted(text)}: {fault}; write {forms}")


def _format(value: float, units: Mapping[str, float], space: str) -> str:
    """Write the value in the largest unit of which there is at least one; zero in the base unit.

    So much of the largest unit that its name says nothing is written as `1.92e20`.
    """
    names = [name for name, factor in units.items() if value != 0 or factor == 1]
    # Rounding comes before the choice, so that 999.9 kB becomes 1 MB and not 1000 kB.
    large = [name for name in names if abs(_rounded(value / units[name])) >= 1]
    unit = large[-1] if large else names[0]
    if unit == names[-1] and abs(value) >= MOST_OF_A_UNIT * units[unit]:
        base = next(name for name, factor in units.items() if factor == 1)
        return f"{value:.3g}{space}{base}".replace("e+", "e")
    return f"{_rounded(value / units[unit]):.12g}{space}{unit}"


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
