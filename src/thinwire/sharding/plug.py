"""Which socket goes where: one object for gathers and one for reductions per FSDP2 module."""

from __future__ import annotations

from torch import nn

from thinwire.sharding.compression import Compression
from thinwire.sharding.fsdp import (
    CompressedAllGather,
    CompressedReduceScatter,
    Socket,
    StockAllGather,
    StockReduceScatter,
)
from thinwire.sharding.replica import ReplicaAllGather, Residents
from thinwire.sharding.units import Unit, find_units

__all__ = ["plug_in"]


def plug_in(model: nn.Module, compression: Compression) -> None:
    """Set the two sockets of every FSDP2 module of a model.

    An uncompressed recipe runs through PyTorch's own collectives, counted. Once one direction is
    compressed both run through ours, a format as wide as the buffer being sent as it is.

    Args:
        model: a model whose FSDP2 modules are sharded now.
        compression: what all sockets share.
    """
    residents = Residents(model, compression) if compression.recipe.resident_format else None
    for unit in find_units(model, compression.recipe):
        all_gather, reduce_scatter = _sockets(unit, compression, residents)
        if not compression.recipe.is_uncompressed:
            # Without this a parameter that one rank did not use is missing from its buffer only,
            # and the ranks' buffers no longer match. FSDP2 then fills in zero gradients.
            unit.module.set_reduce_scatter_unused_params(True)
        # FSDP2's base classes are private; any class with the same methods serves
        unit.module.set_custom_all_gather(all_gather)  # type: ignore[arg-type]
        unit.module.set_custom_reduce_scatter(reduce_scatter)  # type: ignore[arg-type]


def _sockets(
    unit: Unit, compression: Compression, residents: Residents | None
) -> tuple[Socket, Socket]:
    if compression.recipe.is_uncompressed:
        return StockAllGather(unit, compression), StockReduceScatter(unit, compression)
    reduce_scatter = CompressedReduceScatter(unit, compression)
    if residents is not None and unit.world_size > 1:
        return ReplicaAllGather(unit, compression, residents), reduce_scatter
    return CompressedAllGather(unit, compression, reduce_scatter), reduce_scatter
