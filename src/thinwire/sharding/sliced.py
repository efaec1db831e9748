"""Averages of whole gradients that travel in slices, each slice encoded by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from thinwire.comm import collectives
from thinwire.comm.collectives import Traffic
from thinwire.comm.layout import Piece, ShardLayout
from thinwire.comm.sender import Job
from thinwire.comm.topology import Peers
from thinwire.formats import WireFormat
from thinwire.recipe import Recipe
from thinwire.sharding.compression import Compression
from thinwire.sharding.slots import collect, deal_out, even_piece
from thinwire.wire.key import Key

__all__ = ["SlicedAverage", "gradient_format", "recipe_pieces"]


def gradient_format(compression: Compression, name: str, shape: torch.Size) -> WireFormat | None:
    """How a parameter's gradient travels at present, or ``None`` if exactly."""
    if compression.recipe.travels_exactly(name, shape):
        return None
    fmt = compression.grad_formats.format_of(name)
    if fmt.family == "lowrank" and fmt.factors_of(shape) is None:
        return None
    return fmt


def recipe_pieces(model: nn.Module, recipe: Recipe, world_size: int) -> Iterator[Piece]:
    """How every trained parameter is cut over the ranks, in the recipe's format."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            exact = recipe.travels_exactly(name, parameter.shape)
            fmt = None if exact else recipe.grad_rule.format_of(name)
            yield even_piece(name, parameter.shape, parameter.dtype, fmt, world_size)


class SlicedAverage:
    """Every parameter is cut into W slices, which travel in its format; summed in fp32.

    1. Deal the gradients out over W slots.
    2. All-reduce the slots (:func:`thinwire.comm.collectives.all_reduce`), AVG.
    3. Collect the gradients from the slots.

    Bytes sent per rank = those of the all-reduce.

    Args:
        compression: what all sockets of the model share.
        peers: the ranks that take part.
    """

    def __init__(self, compression: Compression, peers: Peers) -> None:
        self._compression = compression
        self._peers = peers
        self._formats = compression.grad_formats
        self._layouts: dict[tuple[str, ...], ShardLayout] = {}

    def job(self, gradients: Mapping[str, Tensor], key: Key) -> Job:
        """The average as a job."""
        layout = self._layout(gradients)
        self._compression.observe(self._own_slices(gradients, layout))
        return self._average(list(gradients.values()), layout, key)

    def _own_slices(
        self, gradients: Mapping[str, Tensor], layout: ShardLayout
    ) -> Iterator[tuple[str, Tensor]]:
        """This rank's slice of every gradient, without padding."""
        rank = self._peers.rank
        for piece, gradient in zip(layout.pieces, gradients.values(), strict=True):
            start = rank * piece.piece_numel
            yield piece.name, gradient.view(-1)[start : start + piece.real_numel(rank)]

    def _layout(self, gradients: Mapping[str, Tensor]) -> ShardLayout:
        """How a set of gradients is cut and packed; made once, until formats are chosen anew."""
        compression = self._compression
        if self._formats is not compression.grad_formats:
            self._formats = compression.grad_formats
            self._layouts.clear()
        identity = tuple(gradients)
        if identity not in self._layouts:
            pieces = []
            for name, gradient in gradients.items():
                fmt = gradient_format(compression, name, gradient.shape)
                pieces.append(
                    even_piece(name, gradient.shape, gradient.dtype, fmt, self._peers.size)
                )
            self._layouts[identity] = ShardLayout(pieces, self._peers.size)
        return self._layouts[identity]

    def _average(self, gradients: list[Tensor], layout: ShardLayout, key: Key) -> Job:
        slots = deal_out(gradients, layout)
        ledger, feedback = self._compression.ledger, self._compression.feedback
        traffic = Traffic(layout, self._peers, ledger, feedback)
        yield from collectives.all_reduce(slots.view(-1), traffic, key, dist.ReduceOp.AVG)
        collect(slots, gradients, layout)
