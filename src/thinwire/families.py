"""What each family of formats can have: bits, blocks, options, and what contradicts what."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import ROUND_DOWN, Decimal

from thinwire.errors import FormatError
from thinwire.quoting import quoted, shortened

__all__ = [
    "DEFAULT_BLOCK",
    "FAMILIES",
    "OPTIONS",
    "ROTATED_ELEMENTS",
    "Family",
    "check_block",
    "check_options",
    "check_percentile",
    "parse_block",
    "unknown_family",
]

DEFAULT_BLOCK = 128
MIN_BLOCK = 8
MAX_BLOCK = 2**20
MOST_DIGITS = 12  # of a block that is read at all

# Elements that `+hadamard` rotates together (SDP4Bit, arXiv 2410.15526, uses 32 as well).
ROTATED_ELEMENTS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What the members of one family have in common.

    Attributes:
        bits: how many bits a code may have.
        numbered: the bits are part of the name: int4, not e4m3.
        blocked: runs of elements share a scale.
        setting: what the name is followed by after ``=``, or None.
        options: what may follow after ``+``.
    """

    bits: tuple[int, ...]
    numbered: bool = False
    blocked: bool = True
    setting: str | None = None
    options: tuple[str, ...] = ()


FAMILIES: dict[str, Family] = {
    "fp32": Family(bits=(32,), blocked=False),
    "bf16": Family(bits=(16,), blocked=False),
    "fp16": Family(bits=(16,), blocked=False),
    "e4m3": Family(bits=(8,), options=("stochastic", "hadamard", "bf16scale")),
    "e5m2": Family(bits=(8,), options=("stochastic", "hadamard", "bf16scale")),
    "int": Family(
        bits=(2, 3, 4, 5, 6, 7, 8),
        numbered=True,
        options=("asym", "stochastic", "shift", "hadamard", "clip", "levels", "bf16scale"),
    ),
    "log": Family(
        bits=(4, 5, 6, 7, 8),
        numbered=True,
        options=("stochastic", "hadamard", "clip", "bf16scale"),
    ),
    "sign": Family(bits=(1,), options=("hadamard", "bf16scale")),
    "topk": Family(bits=(32,), blocked=False, setting="0.01"),
    "lowrank": Family(bits=(32,), blocked=False, setting="4"),
}

# Printing order. A format names a set of options; their order in the text means nothing.
OPTIONS = ("asym", "stochastic", "shift", "hadamard", "clip", "levels", "bf16scale")

# Pairs that contradict each other, with the reason.
_CONFLICTS: dict[tuple[str, str], str] = {
    ("stochastic", "shift"): "each makes the rounding unbiased, so one of them is enough",
    ("asym", "shift"): "the shifted lattice is symmetric and has no zero point",
    ("clip", "shift"): "the shifted lattice is unbiased only when nothing is cut off",
    ("clip", "stochastic"): "what is cut off is off on average too; round to nearest beside +clip",
    ("asym", "levels"): "learned levels are already where the values are",
    ("stochastic", "levels"): "levels are learned for rounding to the nearest one",
    ("shift", "levels"): "levels are learned where the values are, not on a lattice",
}


def unknown_family(name: str) -> str:
    """The sentence for a name that no family has."""
    known = []
    for family_name, family in FAMILIES.items():
        if family.numbered:
            known.append(f"{family_name}{family.bits[0]}..{family_name}{family.bits[-1]}")
        else:
            known.append(f"{family_name}={family.setting}" if family.setting else family_name)
    what = f"unknown format {quoted(name)}" if name else "a format without a name"
    return f"{what}: use one of {', '.join(known)}, for example 'int4/128'"


def parse_block(name: str, text: str) -> int:
    """The number of elements in a block, written after the slash."""
    if re.fullmatch(r"[0-9]+", text) is None:
        raise FormatError(
            f"the block of {name!r} must be a number of elements, not {quoted(text)}: "
            f"write for example '{name}/{DEFAULT_BLOCK}'"
        )
    if len(text) > MOST_DIGITS:
        raise FormatError(
            f"a block of {shortened(text)} elements is not possible: blocks have {MIN_BLOCK} to "
            f"{MAX_BLOCK}; the largest is '{name}/{MAX_BLOCK}'"
        )
    return int(text)


def check_block(name: str, block: int | None, options: frozenset[str]) -> None:
    """Refuse a size that blocks cannot have."""
    if block is None:
        raise FormatError(f"{name} needs a block size, for example '{name}/{DEFAULT_BLOCK}'")
    multiple, reason = MIN_BLOCK, "blocks are"
    if "hadamard" in options:
        multiple, reason = ROTATED_ELEMENTS, "+hadamard rotates 32 elements at a time, blocks are"
    if block % multiple == 0 and multiple <= block <= MAX_BLOCK:
        return
    nearest = min(max(round(block / multiple) * multiple, multiple), MAX_BLOCK)
    raise FormatError(
        f"a block of {block} elements is not possible: {reason} multiples of {multiple} from "
        f"{multiple} to {MAX_BLOCK}; the nearest is '{name}/{nearest}'"
    )


def check_options(name: str, options: frozenset[str], allowed: tuple[str, ...]) -> None:
    """Refuse options that a family does not have, and pairs that contradict each other."""
    for option in sorted(options):
        if option not in allowed:
            choice = ", ".join(f"+{a}" for a in allowed) if allowed else "no options"
            raise FormatError(f"{name} cannot have +{shortened(option)}: it can have {choice}")
    for (first, second), reason in _CONFLICTS.items():
        if first in options and second in options:
            raise FormatError(f"{name} cannot have both +{first} and +{second}: {reason}")
    if name == "int8" and "levels" in options:
        raise FormatError(
            "int8 cannot have +levels: learned levels are chosen from the 255 of int8; "
            "write for example 'int4+levels'"
        )


def check_percentile(
    name: str, percentile: Decimal, block: int | None, options: frozenset[str]
) -> None:
    """Refuse a percentile that cuts off nothing of a block, or more than half of it."""
    assert block is not None  # no family without blocks has +clip
    if not 50 <= percentile < 100:
        raise FormatError(
            f"+clip takes a percentage from 50 to below 100, not {percentile:f}: {name}+clip=99"
        )
    ends = 2 if "asym" in options else 1
    if (100 - percentile) * block < 100 * ends:
        most = (100 * (1 - ends / Decimal(block))).quantize(Decimal("0.01"), ROUND_DOWN)
        raise FormatError(
            f"+clip={percentile:f} cuts nothing off a block of {block} elements: write at most "
            f"{most.normalize():f} percent, or take larger blocks"
        )
