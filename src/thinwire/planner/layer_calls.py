"""The collectives of one layer under one recipe, byte by byte as the ledger counts them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from thinwire.formats import WireFormat, parse_format
from thinwire.planner.call import Call, CodecWork, exchange, ring
from thinwire.planner.group import Group
from thinwire.planner.payload import (
    Payloads,
    Piece,
    even_pieces,
    row_pieces,
    slot_payloads,
)
from thinwire.planner.workload import DTYPE_BYTES, Layer, Parameter
from thinwire.recipe import Recipe

__all__ = ["LayerCalls"]

CASTS = {name: parse_format(name) for name in DTYPE_BYTES}


class LayerCalls:
    """Makes the calls of one layer.

    Args:
        layer: as one tensor-parallel rank holds it; what its first index says about ``exact``
            holds for all of the run.
        recipe: what travels in which format.
        group: the data-parallel ranks.
        stock_passes: how often PyTorch's own reduce-scatter sends its input round.
    """

    def __init__(self, layer: Layer, recipe: Recipe, group: Group, stock_passes: int) -> None:
        self.layer = layer
        self._recipe = recipe
        self._group = group
        self._stock_passes = stock_passes
        self.slot_numel = sum(
            row_pieces(parameter.shape, group.size) for parameter in layer.parameters
        )
        self._whole = float(group.size * self.slot_numel)
        names = layer.parameter_names(layer.start)
        self._exact = [
            recipe.travels_exactly(name, parameter.shape)
            for name, parameter in zip(names, layer.parameters, strict=True)
        ]

    def among(self, group: Group, recipe: Recipe) -> LayerCalls:
        """The same layer among other ranks, under another recipe."""
        return LayerCalls(self.layer, recipe, group, self._stock_passes)

    def gather(self) -> Call:
        """All-gather of every rank's shard."""
        recipe, group = self._recipe, self._group
        if recipe.is_uncompressed:
            slot_bytes = self.slot_numel * DTYPE_BYTES[recipe.compute]
            return ring("all_gather", group, slot_bytes, copied_elements=self._whole)
        fmt = recipe.weight_format
        slot_bytes = self._row_payloads(fmt, recipe.compute).slot_bytes
        return ring(
            "all_gather",
            group,
            slot_bytes,
            payload_bytes=(group.size + 1) * slot_bytes,
            work=(CodecWork("encode", fmt, self.slot_numel), CodecWork("decode", fmt, self._whole)),
            copied_elements=self._whole,
        )

    def gather_within(self) -> Call:
        """hpZ's second gather: what was decoded before, among the ranks of a host, as it is."""
        group = self._group
        unit_numel = group.size * self.slot_numel // group.per_host
        unit_bytes = unit_numel * DTYPE_BYTES[self._recipe.compute]
        return ring("all_gather", group.within, unit_bytes, copied_elements=self._whole)

    def reduce_scatter(self) -> tuple[Call, ...]:
        """Reduce-scatter of gradients, in one hop or in two."""
        recipe, group = self._recipe, self._group
        if recipe.is_uncompressed:
            return (self.stock_reduce(group),)
        fmt = recipe.grad_format
        payloads = self._row_payloads(fmt, "fp32")
        if recipe.grads_within is not None and group.per_host > 1 and group.is_across:
            return self._two_hops(parse_format(recipe.grads_within), payloads)
        work = (CodecWork("encode", fmt, self._whole), CodecWork("sum", fmt, self._whole))
        return (
            exchange("reduce_scatter", group, payloads, work=work, copied_elements=self._whole),
        )

    def stock_reduce(self, group: Group) -> Call:
        """PyTorch's own reduce-scatter among some ranks, in the dtype of the gradients."""
        dtype = self._recipe.grads if self._recipe.is_uncompressed else "fp32"
        unit_bytes = self._group.size * self.slot_numel // group.size * DTYPE_BYTES[dtype]
        passes = self._stock_passes
        return ring(
            "reduce_scatter",
            group,
            unit_bytes,
            passes=passes,
            # an all-reduce inside works on a copy of its input
            payload_bytes=group.size * unit_bytes if passes > 1 else 0.0,
            copied_elements=self._whole,
        )

    def all_reduce(self) -> tuple[Call, ...]:
        """DDP's reduction: one ring, or an exchange and a gather of the encoded result."""
        recipe, group = self._recipe, self._group
        if recipe.is_uncompressed:
            unit_bytes = self.layer.numel * DTYPE_BYTES[recipe.grads] / group.size
            return (ring("all_reduce", group, unit_bytes, passes=2),)
        fmt = recipe.grad_format

        def piece(parameter: Parameter, chosen: WireFormat) -> int:
            return even_pieces(parameter.numel, group.size, chosen.block or 1)

        payloads = self._payloads(fmt, "fp32", piece)
        slot = float(self.layer.numel / group.size)
        whole = float(self.layer.numel)
        return (
            exchange(
                "reduce_scatter",
                group,
                payloads,
                work=(CodecWork("encode", fmt, whole), CodecWork("sum", fmt, whole)),
                copied_elements=whole,
            ),
            ring(
                "all_gather",
                group,
                payloads.slot_bytes,
                payload_bytes=(group.size + 1) * payloads.slot_bytes,
                work=(CodecWork("encode", fmt, slot), CodecWork("decode", fmt, whole)),
                copied_elements=whole,
            ),
        )

    def outer(self) -> tuple[Call, ...]:
        """The outer step of local training: each rank's share of the host, averaged across hosts.

        A share is taken as one row of elements, so that its last block may be ragged.
        """
        group = self._group
        if not group.is_across:
            return ()
        shares = tuple(
            replace(parameter, shape=(1, -(-parameter.numel // group.per_host)), split=None)
            for parameter in self.layer.parameters
        )
        layer = replace(self.layer, parameters=shares)
        calls = LayerCalls(layer, self._recipe, group.across, self._stock_passes)
        return calls.all_reduce()

    def _two_hops(self, inner: WireFormat, across: Payloads) -> tuple[Call, ...]:
        """Within the host first, then across (arXiv 2306.10209, section 3.3).

        In the first hop a rank sends each neighbour the slots of all ranks that sit where it sits
        on their hosts; in the second it sends each of those its slot.
        """
        group, outer = self._group, self._recipe.grad_format
        within = self._row_payloads(inner, "fp32")
        seats = group.per_host
        to_seats = Payloads.of(
            sum(within.between(rank, rank + 1) for rank in range(seat, group.size, seats))
            for seat in range(seats)
        )
        to_hosts = Payloads.of(
            across.between(rank, rank + 1) for rank in range(seats - 1, group.size, seats)
        )
        whole, share = self._whole, self._whole / seats
        return (
            exchange(
                "reduce_scatter",
                group.within,
                to_seats,
                work=(CodecWork("encode", inner, whole), CodecWork("sum", inner, whole)),
                copied_elements=whole,
            ),
            exchange(
                "reduce_scatter",
                group.across,
                to_hosts,
                work=(CodecWork("encode", outer, share), CodecWork("sum", outer, share)),
            ),
        )

    def _row_payloads(self, fmt: WireFormat, exact: str) -> Payloads:
        size = self._group.size
        return self._payloads(fmt, exact, lambda parameter, _: row_pieces(parameter.shape, size))

    def _payloads(
        self, fmt: WireFormat, exact: str, piece_numel: Callable[[Parameter, WireFormat], int]
    ) -> Payloads:
        pieces = []
        for parameter, is_exact in zip(self.layer.parameters, self._exact, strict=True):
            chosen = CASTS[exact] if is_exact else fmt
            pieces.append(Piece(parameter.numel, piece_numel(parameter, chosen), chosen))
        return slot_payloads(pieces, self._group.size)
