"""How a number is written on the wire, as data: parse, print, and count bytes exactly.

A format is spelled ``family[/block][+option]...``, for example ``int4/128+stochastic``. It holds no
tensor and loads no numerical library, so that the planner can price a transfer with the very
arithmetic that the codec obeys: ``len(encode(x).bytes) == format.wire_bytes(x.numel())`` is a law.

A payload is laid out in this order, and rounded up to a multiple of four bytes so that payloads
concatenate and every scale stays aligned (`Layout` gives the offsets)::

    [shift][scale of each block][zero point of each block][codes of each block][0 to 3 zeros]

The codes of a block lie in bit planes of width 8, 4, 2 or 1 whose widths sum to the bits of a code
(`plane_widths`); a ragged last block takes only the bytes that its real elements need.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from thinwire.errors import FormatError

__all__ = ["Layout", "WireFormat", "parse_format", "plane_widths"]

DEFAULT_BLOCK = 128
MIN_BLOCK = 8
MAX_BLOCK = 2**20

_PAYLOAD_ALIGNMENT_BYTES = 4
_SHIFT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """What the members of one family have in common."""

    bits: tuple[int, ...]
    numbered: bool = False  # the bits are part of the name: int4, not e4m3
    blocked: bool = True
    options: tuple[str, ...] = ()


_FAMILIES: dict[str, _Family] = {
    "fp32": _Family(bits=(32,), blocked=False),
    "bf16": _Family(bits=(16,), blocked=False),
    "fp16": _Family(bits=(16,), blocked=False),
    "e4m3": _Family(bits=(8,), options=("stochastic", "bf16scale")),
    "e5m2": _Family(bits=(8,), options=("stochastic", "bf16scale")),
    "int": _Family(
        bits=(2, 3, 4, 5, 6, 7, 8),
        numbered=True,
        options=("asym", "stochastic", "shift", "bf16scale"),
    ),
}

# Printing order. A format names a set of options; their order in the text means nothing.
_OPTIONS = ("asym", "stochastic", "shift", "bf16scale")

# Pairs that contradict each other, with the reason.
_CONFLICTS: dict[tuple[str, str], str] = {
    ("stochastic", "shift"): "each makes the rounding unbiased, so one of them is enough",
    ("asym", "shift"): "the shifted lattice is symmetric and has no zero point",
}


def plane_widths(bits: int) -> tuple[int, ...]:
    """The widths of the bit planes that hold codes of ``bits`` bits, low bits first.

    Widths divide a byte, so that no code straddles two bytes: 7 is (4, 2, 1), 3 is (2, 1).
    """
    return tuple(width for width in (8, 4, 2, 1) if bits & width)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where the parts of one payload lie, in bytes from its start. A part of size 0 is absent."""

    num_blocks: int
    shift_bytes: int
    scales_bytes: int
    zeros_bytes: int
    codes_bytes: int

    @property
    def scales_at(self) -> int:
        """Start of the scales."""
        return self.shift_bytes

    @property
    def zeros_at(self) -> int:
        """Start of the zero points."""
        return self.scales_at + self.scales_bytes

    @property
    def codes_at(self) -> int:
        """Start of the codes."""
        return self.zeros_at + self.zeros_bytes

    @property
    def codes_end(self) -> int:
        """End of the codes: from here to the end of the payload there are zero bytes."""
        return self.codes_at + self.codes_bytes

    @property
    def total_bytes(self) -> int:
        """Size of the payload."""
        return -(-self.codes_end // _PAYLOAD_ALIGNMENT_BYTES) * _PAYLOAD_ALIGNMENT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class WireFormat:
    """One way to write a tensor in bytes. Made by `parse_format`; ``str`` gives the text back.

    Attributes:
        family: ``fp32 bf16 fp16 e4m3 e5m2 int``.
        bits: bits of one code, without scales.
        block: elements that share one scale; None for casts.
        options: names of the options in effect, as a set.

    Raises:
        FormatError: the parts do not go together; the message says what the family can have.
    """

    family: str
    bits: int
    block: int | None = None
    options: frozenset[str] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        """Refuse what no codec could write."""
        family = _FAMILIES.get(self.family)
        if family is None or self.bits not in family.bits:
            raise FormatError(_unknown_family(f"{self.family}{self.bits}"))
        if family.blocked:
            _check_block(self.name, self.block)
        elif self.block is not None:
            raise FormatError(f"{self.name} is a plain cast and has no blocks: write {self.name!r}")
        _check_options(self.name, self.options, family.options)

    def __str__(self) -> str:
        """The canonical text; ``parse_format`` of it gives an equal format."""
        block = "" if self.block is None else f"/{self.block}"
        return f"{self.name}{block}" + "".join(f"+{o}" for o in _OPTIONS if o in self.options)

    @property
    def name(self) -> str:
        """The family as it is spelled, bits included: ``int4``, ``e4m3``."""
        return f"{self.family}{self.bits}" if _FAMILIES[self.family].numbered else self.family

    @property
    def is_cast(self) -> bool:
        """True when each element is written on its own, without blocks or scales."""
        return not _FAMILIES[self.family].blocked

    @property
    def is_stochastic(self) -> bool:
        """True when encoding draws random numbers, so that it needs a key."""
        return "stochastic" in self.options or "shift" in self.options

    @property
    def scale_bytes(self) -> int:
        """Bytes of one scale, and of one zero point; 0 for casts."""
        if self.is_cast:
            return 0
        return 2 if "bf16scale" in self.options else 4

    def code_bytes(self, numel: int) -> int:
        """Bytes of the codes of ``numel`` elements that share one block, or of a cast."""
        if self.is_cast:
            return numel * self.bits // 8
        return sum(-(-numel * width // 8) for width in plane_widths(self.bits))

    def layout(self, numel: int) -> Layout:
        """Where the parts of the payload of ``numel`` elements lie."""
        if numel < 0:
            raise FormatError(f"a tensor cannot have {numel} elements: give 0 or more")
        if self.block is None:
            return Layout(
                num_blocks=0,
                shift_bytes=0,
                scales_bytes=0,
                zeros_bytes=0,
                codes_bytes=self.code_bytes(numel),
            )
        full, ragged = divmod(numel, self.block)
        num_blocks = full + (ragged > 0)
        scales_bytes = num_blocks * self.scale_bytes
        return Layout(
            num_blocks=num_blocks,
            shift_bytes=_SHIFT_BYTES if "shift" in self.options and numel else 0,
            scales_bytes=scales_bytes,
            zeros_bytes=scales_bytes if "asym" in self.options else 0,
            codes_bytes=full * self.code_bytes(self.block) + self.code_bytes(ragged),
        )

    def wire_bytes(self, numel: int) -> int:
        """Exact size in bytes of the payload of ``numel`` elements."""
        return self.layout(numel).total_bytes

    def bits_per_element(self, numel: int) -> float:
        """Bits on the wire per element of a tensor of ``numel`` elements, scales included."""
        if numel < 1:
            raise FormatError(f"bits per element need at least one element, not {numel}")
        return 8 * self.wire_bytes(numel) / numel


def parse_format(text: str) -> WireFormat:
    """Parse ``family[/block][+option]...``; blocks default to 128 elements.

    Args:
        text: for example ``"bf16"``, ``"int4"``, ``"int8/2048+stochastic"``.

    Raises:
        FormatError: unknown family, impossible block, or an option that the family cannot have.
    """
    head, *options = text.strip().split("+")
    name, slash, block_text = head.partition("/")
    family_name, bits = _split_name(name)
    family = _FAMILIES[family_name]
    block: int | None = DEFAULT_BLOCK if family.blocked else None
    if slash:
        block = _parse_block(name, block_text, blocked=family.blocked)
    duplicates = sorted({option for option in options if options.count(option) > 1})
    if duplicates:
        raise FormatError(f"{text!r} gives +{duplicates[0]} twice: write it once")
    return WireFormat(family=family_name, bits=bits, block=block, options=frozenset(options))


def _split_name(name: str) -> tuple[str, int]:
    """``int4`` into ``("int", 4)``, ``e4m3`` into ``("e4m3", 8)``."""
    family = _FAMILIES.get(name)
    if family is not None and not family.numbered:
        return name, family.bits[0]
    match = re.fullmatch(r"([a-z]+)(\d{1,2})", name)
    if match is None or not _is_numbered(match[1], int(match[2])):
        raise FormatError(_unknown_family(name))
    return match[1], int(match[2])


def _is_numbered(family_name: str, bits: int) -> bool:
    family = _FAMILIES.get(family_name)
    return family is not None and family.numbered and bits in family.bits


def _unknown_family(name: str) -> str:
    known = [
        f"{name}{family.bits[0]}..{name}{family.bits[-1]}" if family.numbered else name
        for name, family in _FAMILIES.items()
    ]
    return f"unknown format {name!r}: use one of {', '.join(known)}, for example 'int4/128'"


def _parse_block(name: str, text: str, *, blocked: bool) -> int:
    if not blocked:
        raise FormatError(f"{name} is a plain cast and has no blocks: write {name!r}")
    if re.fullmatch(r"[0-9]{1,12}", text) is None:
        raise FormatError(
            f"the block of {name!r} must be a number of elements, not {text!r}: "
            f"write for example '{name}/{DEFAULT_BLOCK}'"
        )
    return int(text)


def _check_block(name: str, block: int | None) -> None:
    if block is None:
        raise FormatError(f"{name} needs a block size, for example '{name}/{DEFAULT_BLOCK}'")
    if block % MIN_BLOCK == 0 and MIN_BLOCK <= block <= MAX_BLOCK:
        return
    nearest = min(max(round(block / MIN_BLOCK) * MIN_BLOCK, MIN_BLOCK), MAX_BLOCK)
    raise FormatError(
        f"a block of {block} elements is not possible: blocks are multiples of {MIN_BLOCK} from "
        f"{MIN_BLOCK} to {MAX_BLOCK}; the nearest is '{name}/{nearest}'"
    )


def _check_options(name: str, options: frozenset[str], allowed: tuple[str, ...]) -> None:
    for option in sorted(options):
        if option not in allowed:
            choice = ", ".join(f"+{a}" for a in allowed) if allowed else "no options"
            raise FormatError(f"{name} cannot have +{option}: it can have {choice}")
    for (first, second), reason in _CONFLICTS.items():
        if first in options and second in options:
            raise FormatError(f"{name} cannot have both +{first} and +{second}: {reason}")
