"""Whole parameters dealt out over ranks: every parameter is cut into W pieces by itself.

FSDP2 lays out its flat buffers by itself; where parameters are whole on every rank, this does:

    parameter a: | a0 | a1 |    parameter b: | b0 | b1 |    ->    slots: | a0 b0 | a1 b1 |

The cut depends on the parameter alone, so the result does not depend on how they are grouped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from thinwire.comm.layout import Piece, ShardLayout, even_piece_numel
from thinwire.formats import WireFormat
from thinwire.sharding.units import cast_format

__all__ = ["collect", "deal_out", "even_piece"]


def even_piece(
    name: str, shape: torch.Size, dtype: torch.dtype, fmt: WireFormat | None, world_size: int
) -> Piece:
    """A parameter cut evenly over the ranks.

    Args:
        name: its full name in the model.
        shape: its shape.
        dtype: of the gradients.
        fmt: how it travels; ``None``: exactly, in ``dtype``.
        world_size: number of ranks.
    """
    fmt = cast_format(dtype) if fmt is None else fmt
    numel = shape.numel()
    return Piece(
        name=name,
        numel=numel,
        piece_numel=even_piece_numel(numel, world_size, fmt.block or 1),
        format=fmt,
    )


def deal_out(tensors: Sequence[Tensor], layout: ShardLayout) -> Tensor:
    """Contiguous tensors of one dtype as a matrix of W slots; padding is zero."""
    slots: Tensor = tensors[0].new_zeros((layout.world_size, layout.slot_numel))
    for rank, start, flat, piece in _pieces(tensors, layout):
        first, numel = rank * piece.piece_numel, piece.real_numel(rank)
        slots[rank, start : start + numel].copy_(flat[first : first + numel])
    return slots


def collect(slots: Tensor, tensors: Sequence[Tensor], layout: ShardLayout) -> None:
    """The inverse of :func:`deal_out`, into the tensors."""
    for rank, start, flat, piece in _pieces(tensors, layout):
        first, numel = rank * piece.piece_numel, piece.real_numel(rank)
        flat[first : first + numel].copy_(slots[rank, start : start + numel])


def _pieces(
    tensors: Sequence[Tensor], layout: ShardLayout
) -> Iterator[tuple[int, int, Tensor, Piece]]:
    """For every tensor and rank: the rank, the piece's place in a slot, the flat tensor."""
    start = 0
    for tensor, piece in zip(tensors, layout.pieces, strict=True):
        for rank in range(layout.world_size):
            yield rank, start, tensor.view(-1), piece
        start += piece.piece_numel
