"""The bytes of every rank's slot of a layer, by the arithmetic that the codecs obey.

A layer's parameters are dealt out to W ranks piece by piece; a rank's slot holds its piece of each.
FSDP2 deals out whole rows, ceil(rows / W) to each rank; DDP's hook deals out multiples of a block.
Either way early ranks are full, then one may hold a rest, and the last ones may be empty: so the
ranks form a few runs with the same payload, and 10,000 ranks cost no more than four.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from thinwire.formats import WireFormat

__all__ = ["Payloads", "Piece", "even_pieces", "row_pieces", "slot_payloads"]


@dataclass(frozen=True, slots=True)
class Piece:
    """One parameter as it is dealt out.

    Attributes:
        numel: elements of the whole parameter.
        piece_numel: elements that each rank's slot reserves for it.
        format: how it travels.
    """

    numel: int
    piece_numel: int
    format: WireFormat

    def real_numel(self, rank: int) -> int:
        """Elements that a rank really holds; the rest of its piece is padding."""
        return max(0, min(self.piece_numel, self.numel - rank * self.piece_numel))


@dataclass(frozen=True, slots=True)
class Payloads:
    """Payload bytes of the slots of W ranks.

    Attributes:
        runs: ``(first rank, rank after the last, bytes of each)``, in order, covering all ranks.
    """

    runs: tuple[tuple[int, int, int], ...]

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.runs[-1][1]

    @property
    def slot_bytes(self) -> int:
        """The longest payload: rank 0's."""
        return max(payload_bytes for _, _, payload_bytes in self.runs)

    def between(self, first: int, last: int) -> int:
        """Bytes of the slots of the ranks from ``first`` to just before ``last``."""
        return sum(
            max(0, min(stop, last) - max(start, first)) * payload_bytes
            for start, stop, payload_bytes in self.runs
        )

    def of_place(self, place: int, places: int) -> int:
        """Bytes of the slots of the ranks ``place``, ``place + places`` and so on."""
        return sum(
            (_multiples(stop - place, places) - _multiples(start - place, places)) * payload_bytes
            for start, stop, payload_bytes in self.runs
        )

    @property
    def total_bytes(self) -> int:
        """Bytes of all slots."""
        return self.between(0, self.size)


def _multiples(below: int, step: int) -> int:
    """How many of 0, step, 2 * step, ... are below a number."""
    return max(0, -(-below // step))


def row_pieces(shape: tuple[int, ...], world: int) -> int:
    """Elements per rank when whole rows are dealt out."""
    if not shape:
        return 1
    return -(-shape[0] // world) * math.prod(shape[1:])


def even_pieces(numel: int, world: int, block: int) -> int:
    """Elements per rank when a parameter is cut at multiples of ``block`` elements."""
    per_rank = -(-numel // world)
    return -(-per_rank // block) * block


def slot_payloads(pieces: Iterable[Piece], world: int) -> Payloads:
    """The payload bytes of every rank's slot."""
    return _slot_payloads(tuple(pieces), world)


@lru_cache(maxsize=4096)
def _slot_payloads(pieces: tuple[Piece, ...], world: int) -> Payloads:
    edges = {0, world}
    for piece in pieces:
        if piece.piece_numel:
            full, rest = divmod(piece.numel, piece.piece_numel)
            edges |= {full, full + (rest > 0)}
    starts = sorted(edge for edge in edges if edge < world)
    stops = [*starts[1:], world]
    return Payloads(
        tuple(
            (
                start,
                stop,
                sum(piece.format.wire_bytes(piece.real_numel(start)) for piece in pieces),
            )
            for start, stop in zip(starts, stops, strict=True)
        )
    )
