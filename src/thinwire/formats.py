"""How a number is written on the wire, as data: parse, print, and count bytes exactly.

A format is spelled ``family[/block][+option]...``, for example ``int4/128+stochastic``, or
``topk=SHARE`` and ``lowrank=RANK[/ROWSxCOLUMNS]``. It holds no tensor and loads no numerical
library, so that the planner can price a transfer with the very arithmetic that the codec obeys:
``len(encode(x).bytes) == format.wire_bytes(x.numel())`` is a law.

`thinwire.families` says which options a family has, `thinwire.layouts` where the bytes lie.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from typing import Any

from thinwire.errors import FormatError
from thinwire.families import (
    DEFAULT_BLOCK,
    FAMILIES,
    OPTIONS,
    check_block,
    check_options,
    check_percentile,
    parse_block,
    unknown_family,
)
from thinwire.format_fields import check_field_types, check_numel, check_shape, check_text
from thinwire.layouts import Layout, LowRankLayout, SparseLayout, plane_widths
from thinwire.quoting import quoted, shortened

__all__ = ["Layout", "LowRankLayout", "SparseLayout", "WireFormat", "parse_format", "plane_widths"]

_SHIFT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class WireFormat:
    """One way to write a tensor in bytes. Made by `parse_format`; ``str`` gives the text back.

    Attributes:
        family: ``fp32 bf16 fp16 e4m3 e5m2 int log sign topk lowrank``.
        bits: bits of one code, without scales.
        block: elements that share one scale; None for casts, ``topk`` and ``lowrank``.
        options: names of the options in effect, as a set.
        percentile: with ``+clip``, how many percent of a block's magnitudes its scale covers.
        share: with ``topk``, the part of the elements that travels.
        rank: with ``lowrank``, the number of factors.
        shape: with ``lowrank``, rows and columns of the matrix, or None while it is not known.

    Raises:
        FormatError: the parts do not go together; the message says what the family can have.
    """

    family: str
    bits: int
    block: int | None = None
    options: frozenset[str] = field(default_factory=frozenset)
    percentile: Decimal | None = None
    share: Decimal | None = None
    rank: int | None = None
    shape: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        """Refuse what no codec could write."""
        check_field_types(self)
        family = FAMILIES.get(self.family)
        if family is None or self.bits not in family.bits:
            raise FormatError(unknown_family(f"{self.family}{self.bits}"))
        if family.blocked:
            check_block(self.name, self.block, self.options)
        elif self.block is not None:
            raise FormatError(f"{self.name} has no blocks: write {self.name!r}")
        check_options(self.name, self.options, family.options)
        self._check_settings()
        if self.percentile is not None:
            check_percentile(self.name, self.percentile, self.block, self.options)

    def __str__(self) -> str:
        """The canonical text; ``parse_format`` of it gives an equal format."""
        text = self.name
        if self.block is not None:
            text += f"/{self.block}"
        if self.shape is not None:
            text += f"/{self.shape[0]}x{self.shape[1]}"
        for option in OPTIONS:
            if option in self.options:
                text += f"+{option}"
                text += f"={self.percentile:f}" if option == "clip" else ""
        return text

    @property
    def name(self) -> str:
        """The family as it is spelled, number included: ``int4``, ``e4m3``, ``topk=0.01``."""
        if self.family == "topk":
            return f"topk={self.share:f}" if self.share is not None else "topk"
        if self.family == "lowrank":
            return f"lowrank={self.rank}"
        return f"{self.family}{self.bits}" if FAMILIES[self.family].numbered else self.family

    @property
    def is_cast(self) -> bool:
        """True when each element is written on its own, without blocks or scales."""
        return self.family in ("fp32", "bf16", "fp16")

    @property
    def is_stochastic(self) -> bool:
        """True when encoding draws random numbers, so that it needs a key."""
        return "stochastic" in self.options or "shift" in self.options

    @property
    def keeps_residuals(self) -> bool:
        """True for ``fp32``, ``bf16`` and plain ``int8/B``, in which residuals are kept.

        What the format of a residual loses, no later step makes up for.
        """
        is_plain_int8 = (self.family, self.bits) == ("int", 8) and not self.options
        return self.family in ("fp32", "bf16") or is_plain_int8

    @property
    def scale_bytes(self) -> int:
        """Bytes of one scale, and of one zero point; 0 where there are none."""
        if self.block is None:
            return 0
        return 2 if "bf16scale" in self.options else 4

    def code_bytes(self, numel: int) -> int:
        """Bytes of the codes of ``numel`` elements that share one block, or of a cast."""
        if self.block is None:
            return numel * self.bits // 8
        return sum(-(-numel * width // 8) for width in plane_widths(self.bits))

    def layout(self, numel: int) -> Layout:
        """Where the parts of the payload of ``numel`` elements lie: for casts and blocks."""
        check_numel(numel)
        if self.block is None:
            return Layout(
                num_blocks=0,
                head_bytes=0,
                scales_bytes=0,
                zeros_bytes=0,
                codes_bytes=self.code_bytes(numel),
            )
        full, ragged = divmod(numel, self.block)
        num_blocks = full + (ragged > 0)
        scales_bytes = num_blocks * self.scale_bytes
        return Layout(
            num_blocks=num_blocks,
            head_bytes=self._head_bytes if numel else 0,
            scales_bytes=scales_bytes,
            zeros_bytes=scales_bytes if "asym" in self.options else 0,
            codes_bytes=full * self.code_bytes(self.block) + self.code_bytes(ragged),
        )

    def sparse_layout(self, numel: int) -> SparseLayout:
        """Where the parts of the payload of ``numel`` elements lie: for ``topk``."""
        check_numel(numel)
        assert self.share is not None
        return SparseLayout(numel=numel, num_kept=math.ceil(self.share * numel))

    def low_rank_layout(self) -> LowRankLayout:
        """Where the two factors lie: for ``lowrank`` with its shape.

        Raises:
            FormatError: the shape of the matrix is not known.
        """
        assert self.rank is not None
        if self.shape is None:
            raise FormatError(
                f"the size of {self} depends on the shape of the matrix, not on its number of "
                f"elements: use wire_bytes_of(shape), or write '{self}/ROWSxCOLUMNS'"
            )
        rows, columns = self.shape
        return LowRankLayout(rows=rows, columns=columns, num_factors=min(self.rank, rows, columns))

    def wire_bytes(self, numel: int) -> int:
        """Exact size in bytes of the payload of ``numel`` elements.

        Raises:
            FormatError: a number that no tensor has, or ``lowrank`` without its shape.
        """
        if self.family == "topk":
            return self.sparse_layout(numel).total_bytes
        if self.family != "lowrank":
            return self.layout(numel).total_bytes
        check_numel(numel)
        layout = self.low_rank_layout()
        if numel != layout.rows * layout.columns:
            raise FormatError(
                f"{self} is for {layout.rows * layout.columns} elements, not {numel}: use "
                "for_shape(shape)"
            )
        return layout.total_bytes

    def wire_bytes_of(self, shape: Sequence[int]) -> int:
        """Exact size in bytes of the payload of a tensor of this shape; errors as `for_shape`."""
        check_shape(shape)
        return self.for_shape(shape).wire_bytes(math.prod(shape))

    def for_shape(self, shape: Sequence[int]) -> WireFormat:
        """The format for a tensor of this shape: itself, or ``lowrank`` with rows and columns.

        A tensor of more than two dimensions is the matrix of its first one and all others
        (PowerSGD, arXiv 1905.13727, section 3).

        Raises:
            FormatError: ``lowrank`` of a vector or a single number, or one that is for another
                shape already.
        """
        if self.family != "lowrank":
            return self
        check_shape(shape)
        if len(shape) < 2:
            raise FormatError(
                f"{self} needs a matrix, and a tensor of shape {tuple(shape)} is none: "
                "send it as 'fp32' or 'bf16'"
            )
        matrix = (shape[0], math.prod(shape[1:]))
        if self.shape not in (None, matrix):
            raise FormatError(
                f"{self} is for one shape, and a tensor of shape {tuple(shape)} has another: "
                f"write {self.name!r}, which takes the shape of every tensor"
            )
        return replace(self, shape=matrix)

    def factors_of(self, shape: Sequence[int]) -> LowRankLayout | None:
        """The factors of a tensor of this shape, or None where it travels as it is.

        That is for ``lowrank`` a vector, and a matrix that factors would not make smaller; for
        other formats everything.
        """
        if self.family != "lowrank" or len(shape) < 2:
            return None
        layout = self.for_shape(shape).low_rank_layout()
        num_numbers = layout.num_factors * (layout.rows + layout.columns)
        return layout if num_numbers < math.prod(shape) else None

    def bits_per_element(self, numel: int) -> float:
        """Bits on the wire per element of a tensor of ``numel`` elements, scales included."""
        check_numel(numel)
        if numel < 1:
            raise FormatError(f"bits per element need at least one element, not {numel}")
        return 8 * self.wire_bytes(numel) / numel

    @property
    def block_bits(self) -> float:
        """Bits per element of a whole block, its scale and zero point included; of a cast."""
        if self.block is None:
            return float(self.bits)
        layout = self.layout(self.block)
        return 8 * (layout.codes_end - layout.head_bytes) / self.block

    @property
    def _head_bytes(self) -> int:
        if "shift" in self.options:
            return _SHIFT_BYTES
        return int(2**self.bits) if "levels" in self.options else 0

    def _check_settings(self) -> None:
        """The numbers that follow an equals sign: present where they belong, and possible."""
        for owner, owned in (
            ("topk", self.share),
            ("lowrank", self.rank),
            ("clip", self.percentile),
        ):
            is_owner = self.family == owner or owner in self.options
            if is_owner != (owned is not None):
                raise FormatError(
                    f"{owner} needs its number: write {_EXAMPLES[owner]!r}"
                    if is_owner
                    else f"{self.name} takes no number of {owner}: leave it out"
                )
        if self.share is not None and not 0 < self.share < 1:
            raise FormatError(f"topk keeps a share between 0 and 1, not {self.share:f}: topk=0.01")
        if self.rank is not None and self.rank < 1:
            raise FormatError(f"lowrank needs a rank of 1 or more, not {self.rank}: lowrank=4")
        if self.shape is not None and (self.rank is None or min(self.shape) < 0):
            raise FormatError(f"{self.name} cannot have the shape {self.shape}: lowrank=4/64x32")


_EXAMPLES = {"topk": "topk=0.01", "lowrank": "lowrank=4", "clip": "int4+clip=99"}


def parse_format(text: str) -> WireFormat:
    """Parse a format; blocks default to 128 elements.

    Args:
        text: for example ``"bf16"``, ``"int4"``, ``"int8/2048+stochastic"``, ``"int4+clip=99"``,
            ``"topk=0.01"``, ``"lowrank=4"``.

    Raises:
        FormatError: no text, unknown family, impossible block, or an option that the family cannot
            have.
    """
    head, *option_texts = check_text(text).split("+")
    name, slash, block_text = head.partition("/")
    settings: dict[str, Any]
    if name.partition("=")[0] in ("topk", "lowrank"):
        settings = _parse_setting(name, block_text if slash else None)
    else:
        family_name, bits = _split_name(name)
        settings = {"family": family_name, "bits": bits}
        if FAMILIES[family_name].blocked:
            settings["block"] = parse_block(name, block_text) if slash else DEFAULT_BLOCK
        elif slash:
            raise FormatError(f"{name} is a plain cast and has no blocks: write {name!r}")
    return WireFormat(**settings, **_parse_options(text, option_texts))


def _parse_options(text: str, option_texts: list[str]) -> dict[str, Any]:
    """The options, and the number of the one that has one."""
    settings: dict[str, Any] = {}
    names: set[str] = set()
    for option_text in option_texts:
        name, equals, number = option_text.partition("=")
        if name in names:
            raise FormatError(f"{quoted(text)} gives +{shortened(name)} twice: write it once")
        names.add(name)
        if name == "clip" and equals:
            settings["percentile"] = _number(number, "+clip", "int4+clip=99")
        elif equals:
            raise FormatError(f"+{shortened(name)} takes no number: leave {quoted(number)} out")
    return settings | {"options": frozenset(names)}


def _parse_setting(name: str, shape_text: str | None) -> dict[str, Any]:
    """``topk=0.01`` and ``lowrank=4/64x32``."""
    family_name, _, number = name.partition("=")
    bits = FAMILIES[family_name].bits[0]
    if family_name == "topk":
        if shape_text is not None:
            raise FormatError(f"topk has no blocks: write {quoted(name)}")
        share = _number(number, "topk", "topk=0.01")
        return {"family": family_name, "bits": bits, "share": share}
    if re.fullmatch(r"[0-9]{1,6}", number) is None:
        raise FormatError(
            f"lowrank needs a whole rank of at most 6 digits, not {quoted(number)}: write for "
            "example 'lowrank=4'"
        )
    shape = None
    if shape_text is not None:
        match = re.fullmatch(r"([0-9]{1,12})x([0-9]{1,12})", shape_text)
        if match is None:
            raise FormatError(
                f"{name} is followed by rows and columns of at most 12 digits, not "
                f"{quoted(shape_text)}: write for example '{name}/1024x768'"
            )
        shape = (int(match[1]), int(match[2]))
    return {"family": family_name, "bits": bits, "rank": int(number), "shape": shape}


def _number(text: str, owner: str, example: str) -> Decimal:
    """An exact decimal number without trailing zeros, so that equal formats are equal."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        number = Decimal("NaN")
    if re.fullmatch(r"[0-9.]{1,12}", text) is None or not number.is_finite():
        if number.is_finite() and 0 < number < 1000 and len(f"{number:f}") <= 12:
            raise FormatError(
                f"{owner} is written without an exponent or a sign: write {number:f}, not "
                f"{quoted(text)}"
            )
        raise FormatError(
            f"{owner} needs a number of at most 12 characters, not {quoted(text)}: write for "
            f"example {example!r}"
        )
    return number.normalize()


def _split_name(name: str) -> tuple[str, int]:
    """``int4`` into ``("int", 4)``, ``e4m3`` into ``("e4m3", 8)``."""
    family = FAMILIES.get(name)
    if family is not None and not family.numbered:
        return name, family.bits[0]
    match = re.fullmatch(r"([a-z]+)([1-9])", name)
    if match is None or not _is_numbered(match[1], int(match[2])):
        raise FormatError(unknown_family(name))
    return match[1], int(match[2])


def _is_numbered(family_name: str, bits: int) -> bool:
    family = FAMILIES.get(family_name)
    return family is not None and family.numbered and bits in family.bits
