"""How the ranks of a group share a flat buffer of parameters.

    rank 0's slot                rank 1's slot                ...
    +--------+-------+-----+     +--------+-------+-----+
    | p0[0]  | p1[0] |.....|     | p0[1]  | p1[1] |xx...|     x = padding
    +--------+-------+-----+     +--------+-------+-----+

All slots have the same number of elements, since collectives want it so; the last pieces of a
parameter may be short, or empty. Only real elements are encoded: padding never enters a scale.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from thinwire.formats import WireFormat
from thinwire.wire.packing import Packing, Segment

__all__ = ["Piece", "ShardLayout", "even_piece_numel", "row_piece_numel"]

ROTATION = "hadamard"  # the option that rotates 32 elements at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One parameter of a flat buffer.

    Attributes:
        name: the parameter's full name; keys its random numbers.
        numel: elements of the whole parameter.
        piece_numel: elements that each rank's slot reserves for it.
        format: how it travels.
    """

    name: str
    numel: int
    piece_numel: int
    format: WireFormat

    def real_numel(self, rank: int) -> int:
        """Elements of the parameter that rank ``rank`` really holds; the rest is padding."""
        return max(0, min(self.piece_numel, self.numel - rank * self.piece_numel))


def row_piece_numel(shape: Sequence[int], world_size: int) -> int:
    """Elements per rank when whole rows are dealt out, as FSDP2 does: ``ceil(rows / W)`` rows."""
    if not shape:
        return 1
    row_numel = 1
    for size in shape[1:]:
        row_numel *= size
    return -(-shape[0] // world_size) * row_numel


def even_piece_numel(numel: int, world_size: int, block: int) -> int:
    """Elements per rank when a parameter is cut evenly at multiples of ``block`` elements."""
    per_rank = -(-numel // world_size)
    return -(-per_rank // block) * block


class ShardLayout:
    """The pieces of a flat buffer, and how each rank's slot of it is packed.

    Args:
        pieces: the parameters in the order of the buffer.
        world_size: number of ranks that share it.
    """

    def __init__(self, pieces: Iterable[Piece], world_size: int) -> None:
        self.pieces = tuple(pieces)
        self.world_size = world_size
        self.slot_numel = sum(piece.piece_numel for piece in self.pieces)

    @cached_property
    def packings(self) -> tuple[Packing, ...]:
        """For every rank, how its slot becomes a payload."""
        return tuple(
            Packing(
                [
                    Segment(
                        numel=piece.real_numel(rank),
                        format=piece.format,
                        name=piece.name,
                        padding=piece.piece_numel - piece.real_numel(rank),
                    )
                    for piece in self.pieces
                ]
            )
            for rank in range(self.world_size)
        )

    @cached_property
    def rotated(self) -> frozenset[str]:
        """The pieces whose format rotates them."""
        return frozenset(p.name for p in self.pieces if ROTATION in p.format.options)

    @cached_property
    def unrotated(self) -> ShardLayout:
        """The same slots in formats that do not rotate: payloads of rotated values, read as such.

        A rotation changes no byte of the layout of a payload, and leaves each element in its place.
        """
        pieces = (
            replace(piece, format=replace(piece.format, options=piece.format.options - {ROTATION}))
            for piece in self.pieces
        )
        return ShardLayout(pieces, self.world_size)

    @cached_property
    def slot_bytes(self) -> int:
        """Bytes of the longest payload of a slot; no rank holds more than rank 0."""
        return max(packing.wire_bytes for packing in self.packings)

    @cached_property
    def formats(self) -> frozenset[str]:
        """The formats that the payload holds, in writing."""
        return frozenset(str(piece.format) for piece in self.pieces if piece.numel)
