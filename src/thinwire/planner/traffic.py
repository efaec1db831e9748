"""Which collectives a recipe runs, layer by layer and micro-batch by micro-batch.

    stage 0      all-reduce of gradients                          2P a reduction
    stage 1      reduce-scatter of gradients, gather of updated parameters      2P a step
    stage 2      gather before forward, reduce-scatter            2P a micro-batch
    stage 3      gather before forward and before backward, reduce-scatter      3P a micro-batch
    replica      one gather a step, both gathers of stage 3 served from memory

(arXiv 1910.02054, section 7; each times (W-1)/W.) A micro-batch that is not the last one reduces
too under ``accumulate=sync``, within the host under ``within``, and not at all under ``keep``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache

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

__all__ = ["LayerTraffic", "MicroBatch", "layer_traffic", "micro_batches", "padded_numel"]

CASTS = {name: parse_format(name) for name in DTYPE_BYTES}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTraffic:
    """The calls of one layer, by when they happen; an empty tuple where there are none.

    Attributes:
        forward: gathers before its forward.
        backward: gathers before its backward.
        reduce: reduction of its gradients.
        partial: reduction within the host only, of a micro-batch that is not the last.
        update: gathers after the optimizer step.
        outer: exchange across hosts, once in ``local_steps`` steps.
        served_elements: parameters copied from a replica, in each of forward and backward.
    """

    forward: tuple[Call, ...] = ()
    backward: tuple[Call, ...] = ()
    reduce: tuple[Call, ...] = ()
    partial: tuple[Call, ...] = ()
    update: tuple[Call, ...] = ()
    outer: tuple[Call, ...] = ()
    served_elements: float = 0.0


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What one kind of micro-batch communicates, and how many of a step are of this kind.

    Attributes:
        count: how many.
        gathers: whether parameters are gathered.
        reduction: ``"full"``, ``"partial"`` or ``"none"``.
    """

    count: int
    gathers: bool
    reduction: str


def micro_batches(recipe: Recipe, accumulate: int) -> tuple[MicroBatch, ...]:
    """The kinds of micro-batches of a step, in order; the last one is the last kind.

    Args:
        recipe: its stage and ``accumulate`` decide.
        accumulate: micro-batches per optimizer step.
    """
    early_reduction = {"sync": "full", "within": "partial", "keep": "none"}[recipe.accumulate]
    # parameters that stay whole while gradients do are gathered once a step
    keeps_weights = recipe.stage in (0, 1) or (
        recipe.accumulate == "keep" and (recipe.stage == 2 or recipe.replica == "rank")
    )
    kinds = [
        MicroBatch(1, True, early_reduction),
        MicroBatch(accumulate - 2, not keeps_weights, early_reduction),
        MicroBatch(1, not keeps_weights, "full"),
    ]
    if accumulate == 1:
        return (MicroBatch(1, True, "full"),)
    return tuple(kind for kind in kinds if kind.count)


def layer_traffic(
    layer: Layer, recipe: Recipe, group: Group, *, is_root: bool = False
) -> LayerTraffic:
    """The calls of one layer.

    Args:
        layer: as one tensor-parallel rank holds it.
        recipe: what travels in which format.
        group: the data-parallel ranks.
        is_root: whether it is the root, whose parameters FSDP2 keeps from forward to backward.
    """
    if group.size == 1 or not layer.numel:
        return LayerTraffic()
    if recipe.local_steps > 1:
        inner = layer_traffic(layer, _every_step(recipe), group.within, is_root=is_root)
        return replace(inner, outer=_outer(layer, recipe, group))
    if recipe.stage == 0:
        return LayerTraffic(reduce=_all_reduce(layer, recipe, group))
    gather = (_gather(layer, recipe, group),)
    reduce = _reduce_scatter(layer, recipe, group)
    partial: tuple[Call, ...] = ()
    if recipe.accumulate == "within" and group.per_host > 1:
        partial = (_stock_reduce(layer, recipe, group.within),)
    if recipe.stage == 1:
        return LayerTraffic(reduce=reduce, partial=partial, update=gather)
    if recipe.replica == "rank":
        return LayerTraffic(
            reduce=reduce, partial=partial, update=gather, served_elements=float(layer.numel)
        )
    backward: tuple[Call, ...] = ()
    if recipe.stage == 3 and recipe.replica is None and not is_root:
        backward = gather
    elif recipe.replica == "host" and group.per_host > 1:
        backward = (_gather_within(layer, recipe, group),)
    return LayerTraffic(forward=gather, backward=backward, reduce=reduce, partial=partial)


@cache
def _every_step(recipe: Recipe) -> Recipe:
    return replace(recipe, local_steps=1)


def _outer(layer: Layer, recipe: Recipe, group: Group) -> tuple[Call, ...]:
    """The outer step of local training: each rank's share of the host, averaged across hosts."""
    if not group.is_across:
        return ()
    shares = tuple(
        replace(parameter, shape=(-(-parameter.numel // group.per_host),), split=None)
        for parameter in layer.parameters
    )
    return _all_reduce(replace(layer, parameters=shares), recipe, group.across)


def padded_numel(parameters: Iterable[Parameter], world: int) -> int:
    """Elements of one rank's slot of FSDP2's flat buffer, padding included."""
    return sum(row_pieces(parameter.shape, world) for parameter in parameters)


def _gather(layer: Layer, recipe: Recipe, group: Group) -> Call:
    """All-gather of every rank's shard."""
    slot_numel = padded_numel(layer.parameters, group.size)
    whole = float(group.size * slot_numel)
    if recipe.is_uncompressed:
        slot_bytes = slot_numel * DTYPE_BYTES[recipe.compute]
        return ring("all_gather", group, slot_bytes, copied_elements=whole)
    fmt = recipe.weight_format
    payloads = _row_payloads(layer, recipe, group.size, fmt, recipe.compute)
    return ring(
        "all_gather",
        group,
        payloads.slot_bytes,
        work=(CodecWork("encode", fmt, slot_numel), CodecWork("decode", fmt, whole)),
        copied_elements=whole,
    )


def _gather_within(layer: Layer, recipe: Recipe, group: Group) -> Call:
    """hpZ's second gather: what was decoded before, among the ranks of a host, as it is."""
    whole = group.size * padded_numel(layer.parameters, group.size)
    unit_bytes = whole // group.per_host * DTYPE_BYTES[recipe.compute]
    return ring("all_gather", group.within, unit_bytes, copied_elements=float(whole))


def _reduce_scatter(layer: Layer, recipe: Recipe, group: Group) -> tuple[Call, ...]:
    """Reduce-scatter of gradients, in one hop or in two."""
    if recipe.is_uncompressed:
        return (_stock_reduce(layer, recipe, group),)
    fmt, whole = recipe.grad_format, float(group.size * padded_numel(layer.parameters, group.size))
    payloads = _row_payloads(layer, recipe, group.size, fmt, "fp32")
    if recipe.grads_within is None or group.per_host == 1 or not group.is_across:
        work = (CodecWork("encode", fmt, whole), CodecWork("sum", fmt, whole))
        return (exchange("reduce_scatter", group, payloads, work=work, copied_elements=whole),)
    return _two_hops(layer, recipe, group, payloads)


def _two_hops(layer: Layer, recipe: Recipe, group: Group, across: Payloads) -> tuple[Call, ...]:
    """Within the host first, then across (arXiv 2306.10209, section 3.3).

    In the first hop a rank sends each neighbour the slots of all ranks that sit where it sits on
    their hosts; in the second it sends each of those its slot.
    """
    inner = parse_format(recipe.grads_within or recipe.grads)
    whole = float(group.size * padded_numel(layer.parameters, group.size))
    within = _row_payloads(layer, recipe, group.size, inner, "fp32")
    seats = group.per_host
    by_seat = tuple(
        sum(within.between(rank, rank + 1) for rank in range(seat, group.size, seats))
        for seat in range(seats)
    )
    to_seats = Payloads(tuple((seat, seat + 1, size) for seat, size in enumerate(by_seat)))
    last_seat = tuple(across.between(r, r + 1) for r in range(seats - 1, group.size, seats))
    to_hosts = Payloads(tuple((host, host + 1, size) for host, size in enumerate(last_seat)))
    share = whole / seats
    outer = recipe.grad_format
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


def _stock_reduce(layer: Layer, recipe: Recipe, group: Group) -> Call:
    """PyTorch's own reduce-scatter, in the dtype of the gradients."""
    slot_numel = padded_numel(layer.parameters, group.size)
    dtype = recipe.grads if recipe.is_uncompressed else "fp32"
    return ring(
        "reduce_scatter",
        group,
        slot_numel * DTYPE_BYTES[dtype],
        copied_elements=float(group.size * slot_numel),
    )


def _all_reduce(layer: Layer, recipe: Recipe, group: Group) -> tuple[Call, ...]:
    """DDP's reduction: one ring, or an exchange and a gather of the encoded result."""
    if recipe.is_uncompressed:
        unit_bytes = layer.numel * DTYPE_BYTES[recipe.grads] / group.size
        return (ring("all_reduce", group, unit_bytes, passes=2),)
    fmt, world = recipe.grad_format, group.size
    pieces = []
    for name, parameter in zip(layer.parameter_names(layer.start), layer.parameters, strict=True):
        chosen = _format(recipe, name, parameter, fmt, "fp32")
        piece = even_pieces(parameter.numel, world, chosen.block or 1)
        pieces.append(Piece(parameter.numel, piece, chosen))
    payloads = slot_payloads(pieces, world)
    slot = float(sum(piece.piece_numel for piece in pieces))
    whole = world * slot
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
            work=(CodecWork("encode", fmt, slot), CodecWork("decode", fmt, whole)),
            copied_elements=whole,
        ),
    )


def _row_payloads(
    layer: Layer, recipe: Recipe, world: int, fmt: WireFormat, exact: str
) -> Payloads:
    names = layer.parameter_names(layer.start)
    return slot_payloads(
        (
            Piece(
                parameter.numel,
                row_pieces(parameter.shape, world),
                _format(recipe, name, parameter, fmt, exact),
            )
            for name, parameter in zip(names, layer.parameters, strict=True)
        ),
        world,
    )


def _format(
    recipe: Recipe, name: str, parameter: Parameter, fmt: WireFormat, exact: str
) -> WireFormat:
    """The format of one parameter: the recipe's, or a cast where it travels exactly."""
    return CASTS[exact] if recipe.travels_exactly(name, parameter.shape) else fmt
