"""Where the parts of a payload lie, in bytes: arithmetic that codecs and planner share.

Every payload is rounded up to a multiple of four bytes, so that payloads concatenate and every
number of four bytes stays aligned.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Layout", "LowRankLayout", "SparseLayout", "plane_widths"]

_ALIGNMENT_BYTES = 4
_FLOAT_BYTES = 4

# Positions of kept elements are counted from the start of their stretch, in two bytes each.
STRETCH_ELEMENTS = 2**16
_POSITION_BYTES = 2
_COUNT_BYTES = 4


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def plane_widths(bits: int) -> tuple[int, ...]:
    """The widths of the bit planes that hold codes of ``bits`` bits, low bits first.

    Widths divide a byte, so that no code straddles two bytes: 7 is (4, 2, 1), 3 is (2, 1).
    """
    return tuple(width for width in (8, 4, 2, 1) if bits & width)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A payload of blocks, or of a cast. A part of size 0 is absent::

    [head][scale of each block][zero point of each block][codes of each block][0 to 3 zeros]

    The head is what the whole tensor shares: the shift of the lattice, or the learned levels.
    """

    num_blocks: int
    head_bytes: int
    scales_bytes: int
    zeros_bytes: int
    codes_bytes: int

    @property
    def scales_at(self) -> int:
        """Start of the scales."""
        return self.head_bytes

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
        return _aligned(self.codes_end)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseLayout:
    """The payload of ``topk``, in whichever of two forms is smaller::

    [kept values: 4 bytes each][count of each stretch: 4 bytes each][positions: 2 bytes each]
    [kept values: 4 bytes each][one bit per element of the tensor: 1 where it is kept]

    A stretch is 65,536 elements; a position counts from the start of its stretch. Which form is
    smaller follows from the two numbers, so that the receiver knows it too.
    """

    numel: int
    num_kept: int

    @property
    def num_stretches(self) -> int:
        """Stretches, the last one perhaps shorter."""
        return -(-self.numel // STRETCH_ELEMENTS)

    @property
    def positions_at(self) -> int:
        """End of the values; start of the counts, or of the bit mask."""
        return self.num_kept * _FLOAT_BYTES

    @property
    def list_bytes(self) -> int:
        """Size of counts and positions."""
        return self.num_stretches * _COUNT_BYTES + self.num_kept * _POSITION_BYTES

    @property
    def mask_bytes(self) -> int:
        """Size of the bit mask."""
        return -(-self.numel // 8)

    @property
    def is_mask(self) -> bool:
        """True when the bit mask is the smaller of the two."""
        return self.mask_bytes <= self.list_bytes

    @property
    def positions_end(self) -> int:
        """End of the positions: from here to the end of the payload there are zero bytes."""
        return self.positions_at + min(self.mask_bytes, self.list_bytes)

    @property
    def total_bytes(self) -> int:
        """Size of the payload."""
        return _aligned(self.positions_end)


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRankLayout:
    """The payload of ``lowrank``: two factors in float32, column after column::

    [left factor: num_columns x rows][right factor: num_columns x columns]
    """

    rows: int
    columns: int
    num_factors: int

    @property
    def left_numel(self) -> int:
        """Elements of the left factor, which come first."""
        return self.num_factors * self.rows

    @property
    def total_bytes(self) -> int:
        """Size of the payload."""
        return _FLOAT_BYTES * self.num_factors * (self.rows + self.columns)
