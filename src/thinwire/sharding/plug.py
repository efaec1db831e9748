"""Which socket goes where: one object for gathers and one for reductions per FSDP2 module."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Shard

from thinwire.comm.hierarchy import TwoLevels
from thinwire.errors import ConfigError
from thinwire.formats import parse_format
from thinwire.sharding.compression import Compression
from thinwire.sharding.fsdp import (
    CompressedAllGather,
    CompressedReduceScatter,
    Socket,
    StockAllGather,
    StockReduceScatter,
)
from thinwire.sharding.hybrid import CompressedAverage, pieces_across, plug_in_averages
from thinwire.sharding.replica import ReplicaAllGather, Residents
from thinwire.sharding.units import Unit

__all__ = ["plug_in"]

FP32 = parse_format("fp32")


def plug_in(units: list[Unit], model: nn.Module, compression: Compression) -> None:
    """Set the two sockets of every FSDP2 module of a model, and under ``hybrid`` the third.

    An uncompressed recipe runs through PyTorch's own collectives, counted. Once one direction is
    compressed both run through ours, a format as wide as the buffer being sent as it is.

    Args:
        units: what :func:`thinwire.sharding.units.find_units` returned, the same on every rank.
        model: a model whose FSDP2 modules are sharded now.
        compression: what all sockets share.

    Raises:
        ConfigError: FSDP2 replicates the model by itself, or the recipe's ``hybrid`` does not fit
            how the model is sharded.
    """
    recipe = compression.recipe
    _refuse_native_hybrid(units, compression)
    compression.num_shards = _num_shards(units)
    averages = plug_in_averages(units, compression) if recipe.hybrid else {}
    residents = Residents(model, compression) if recipe.resident_format else None
    # under hybrid a unit that is whole on every host is averaged all the same
    _adapt([unit for unit in units if unit.world_size > 1 or recipe.hybrid], compression)
    for unit in units:
        all_gather, reduce_scatter = _sockets(unit, compression, residents, averages)
        if not recipe.is_uncompressed or recipe.accumulate == "within":
            # Without this a parameter that one rank did not use is missing from its buffer only,
            # and the ranks' buffers no longer match. FSDP2 then fills in zero gradients, to which
            # is added what early micro-batches left of a module that the last one did not use.
            unit.module.set_reduce_scatter_unused_params(True)
        # FSDP2's base classes are private; any class with the same methods serves
        unit.module.set_custom_all_gather(all_gather)  # type: ignore[arg-type]
        unit.module.set_custom_reduce_scatter(reduce_scatter)  # type: ignore[arg-type]


def _sockets(
    unit: Unit,
    compression: Compression,
    residents: Residents | None,
    averages: Mapping[str, CompressedAverage],
) -> tuple[Socket, Socket]:
    if compression.recipe.is_uncompressed:
        return StockAllGather(unit, compression), StockReduceScatter(unit, compression)
    average = averages.get(unit.name)
    hand_over = None if average is None else average.run_after
    reduce_scatter = CompressedReduceScatter(unit, compression, hand_over)
    if residents is not None and unit.world_size > 1:
        return ReplicaAllGather(unit, compression, residents), reduce_scatter
    return CompressedAllGather(unit, compression), reduce_scatter


def _num_shards(units: list[Unit]) -> int:
    """The ranks over which the rows of all parameters are dealt out; 0: not all are, or not so."""
    parameters = [member.sharded for unit in units for member in unit.members]
    rows = [p is not None and p.placements == (Shard(0),) for p in parameters]
    sizes = {p.device_mesh.size() for p in parameters if p is not None}
    return sizes.pop() if all(rows) and len(sizes) == 1 else 0


def _adapt(units: list[Unit], compression: Compression) -> None:
    """Have the bits of gradients adapt, in the units that reduce any."""
    rule, topology = compression.recipe.grad_rule, compression.topology
    pieces = [piece for u in units for piece in u.layout(u.members, rule, FP32).pieces]
    world = dist.group.WORLD
    assert world is not None  # the topology was asked of it
    if compression.recipe.hybrid:
        levels = TwoLevels.of(topology.peers(world))
        compression.adapt(pieces_across(pieces, levels), levels.peers)
        return
    sharded = units[0].members[0].sharded if units else None
    if sharded is not None:
        compression.adapt(pieces, topology.peers(sharded.device_mesh.get_group(-1)))


def _refuse_native_hybrid(units: list[Unit], compression: Compression) -> None:
    """Raise, or warn if the recipe is not strict, where FSDP2 all-reduces on a 2-D mesh."""
    if not any(member.is_replicated for unit in units for member in unit.members):
        return
    message = (
        f"recipe {compression.recipe.name}: on a 2-D mesh FSDP2 all-reduces gradients between "
        "replicas by itself, uncompressed and out of the ledger; pass the plain model to "
        "thinwire.shard with hybrid=true in the recipe"
    )
    if compression.recipe.strict:
        raise ConfigError(message + ", or accept it with strict=false")
    warnings.warn(message, stacklevel=4)
