"""What compression remembers from step to step, as plain tensors for a checkpoint.

    shared/...      equal on all ranks: counters, right factors, anchors and outer momentum, and the
                    late gradients of stage 0
    rank3/...       rank 3's own: residuals, rows of replicas, and the late gradients of shards

A checkpoint that every rank writes by itself, such as ``torch.save``, takes all of it. One that all
ranks write together keeps a single copy of tensors of one name, which these names allow for. The
states of all ranks, joined into one, can be loaded on another number of ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from thinwire.comm.agreement import refused_together, require_agreement
from thinwire.errors import StateError
from thinwire.sharding.arrangement import ARRANGEMENT, HOSTS, Arrangement
from thinwire.sharding.attach import compression_of
from thinwire.sharding.compression import Compression, Store
from thinwire.sharding.inventory import check_inventory, inventory_entry, inventory_of
from thinwire.sharding.origin import ORIGIN, check_origin, origin_entry
from thinwire.sharding.redistribution import Redistribution, is_dealt_out
from thinwire.sharding.soundness import (
    check_factors,
    check_finite,
    check_late,
    check_residuals,
    check_tensors,
    digests,
)
from thinwire.wire.feedback import Residuals

__all__ = ["blank_compression_state", "compression_state", "load_compression_state"]

# which of the stores hold the same on every rank
SHARED_STORES = ("adaptation", "counters", "factors", "outer")


def compression_state(model: nn.Module) -> dict[str, Tensor]:
    """What a model's compression remembers: a run that loads it goes on bit for bit.

    It holds the residuals of error feedback, the right factors of ``lowrank``, the counters that
    random numbers are keyed by and warm-up ends at, the anchor and momentum of local steps, the
    own rows of resident replicas, and the gradients that are one step late. Call it between
    optimizer steps.

    Args:
        model: what ``shard`` returned, or ``compress`` was called on.

    Returns:
        Tensors by name, of any dtype; those in use, not copies. Names that begin with ``shared/``
        are equal on all ranks, those with ``rank<r>/`` are that rank's own.

    Raises:
        StateError: the model was neither sharded nor compressed by thinwire.
    """
    compression = compression_of(model)
    compression.finish_jobs()
    state = Arrangement.of(compression).state() | {ORIGIN: origin_entry(compression.recipe)}
    for prefix, store in _stores(compression):
        state |= {f"{prefix}/{name}": tensor for name, tensor in store.state().items()}
    rank = dist.get_rank()
    return state | {inventory_of(rank): inventory_entry(state, rank)}


def load_compression_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Continue from what :func:`compression_state` returned. A collective call.

    Load weights and optimizer states too, and the random number generators that the model uses.

    On as many ranks as saved it, a run goes on bit for bit. On another number, or where hosts hold
    other ranks and reductions take two hops, what was lost is dealt out anew: of every element,
    ``sum over ranks of weight * residual`` stays what it was, the weight being that with which a
    residual enters the reduced gradient. Late gradients are cut anew, and resident replicas made
    from the weights. See :class:`thinwire.sharding.redistribution.Redistribution`.

    All of the state is examined before any of it is taken: if one rank refuses its part, all do,
    and the model remembers what it did before.

    Args:
        model: sharded or compressed anew, with the same recipe.
        state: the entries of this rank, and perhaps those of others, which are left alone; those of
            all ranks that saved it, joined into one dict, if they are dealt out anew. Copied.

    Raises:
        StateError: the state does not fit the model or its recipe, lacks an entry, holds values
            that are not finite, or its shared part differs between ranks. Where it is dealt out
            anew also: entries of some ranks are missing; it was saved between two meetings of
            local steps; parameters are not cut by rows; FSDP2 divided sums by what is not known.
    """
    with refused_together("thinwire.load_compression_state", StateError):
        compression = compression_of(model)
        saved, entries = _fitting(model, compression, state)
    present = Arrangement.of(compression)
    if present.num_shards == present.usual_shards(compression.recipe):
        shared = {f"{prefix}/{n}": t for prefix, kept in entries.items() for n, t in kept.items()}
        description = [*digests(shared), repr(saved)]
        require_agreement("shared part of the state", description, StateError)
    compression.finish_jobs()  # or one under way would go on to change what is loaded
    compression.divisor = saved.divisor
    for prefix, store in _stores(compression):
        store.load(entries[prefix])
    compression.choose_formats()


def blank_compression_state(
    metadata: Metadata, *, prefix: str = "compression", every_rank: bool = False
) -> dict[str, Tensor]:
    """Tensors of the sizes of a saved state, for ``torch.distributed.checkpoint.load`` to fill.

    A model that has not taken a step yet cannot tell what it will remember; the checkpoint can.
    Where another number of ranks saved it, that is what they all remember: the memory of their
    residuals together, on the host of every rank, until the state is loaded.

    Args:
        metadata: of the checkpoint: ``FileSystemReader(path).read_metadata()``.
        prefix: the name under which the state was saved.
        every_rank: whether to return what all ranks remember in any case, which is needed where as
            many ranks are on other hosts and reductions take two hops.

    Returns:
        The entries that are shared, this rank's own, and perhaps those of the others, without
        meaningful values.

    Raises:
        StateError: the checkpoint holds no state of that name, or ``metadata`` is not that of one.
    """
    if not isinstance(metadata, Metadata):
        raise StateError(
            f"the contents of a checkpoint are expected, not {type(metadata).__name__}: pass "
            "FileSystemReader(path).read_metadata()"
        )
    saved = {
        name.removeprefix(f"{prefix}."): item
        for name, item in metadata.state_dict_metadata.items()
        if isinstance(item, TensorStorageMetadata) and name.startswith(f"{prefix}.")
    }
    if HOSTS not in saved:
        raise StateError(
            f"the checkpoint holds no compression state under {prefix!r}: save "
            f"{{{prefix!r}: thinwire.compression_state(model)}} with it, or train on without"
        )
    everyone = every_rank or saved[HOSTS].size.numel() != dist.get_world_size()
    own = ("shared/", f"rank{dist.get_rank()}/")
    return {
        entry: torch.empty(item.size, dtype=item.properties.dtype)
        for entry, item in saved.items()
        if entry.startswith(own) or (everyone and is_dealt_out(entry))
    }


def _stores(compression: Compression) -> Iterator[tuple[str, Store]]:
    """Everything that remembers, and the prefix of its names.

    Late gradients come first: asked for theirs, they wait for whatever still changes residuals.
    """
    own = f"rank{dist.get_rank()}"
    if compression.late is not None:
        # in stage 0 every rank has the whole average, otherwise its shard
        yield f"{own if compression.recipe.stage else 'shared'}/late", compression.late
    yield "shared/counters", compression.counters
    if isinstance(compression.feedback, Residuals):
        yield f"{own}/residuals", compression.feedback
    for name, store in compression.stores.items():
        yield f"{'shared' if name in SHARED_STORES else own}/{name}", store


def _fitting(
    model: nn.Module, compression: Compression, state: Mapping[str, Tensor]
) -> tuple[Arrangement, dict[str, dict[str, Tensor]]]:
    """Who saved a state, and what of it every store takes; raises before anything is loaded."""
    check_tensors(state)
    check_origin(compression.recipe, state)
    shapes = {name.removeprefix("module."): p.shape for name, p in model.named_parameters()}
    _check_parameters(shapes.keys(), state)
    saved = Arrangement.read(state)
    is_dealt_out_anew = _must_be_dealt_out(compression, saved)
    if is_dealt_out_anew:
        compression.counters.check(_under("shared/counters", state))
        state = Redistribution(compression, saved, dist.get_rank(), shapes).entries(state)
    elif saved.num_shards != compression.num_shards:
        raise StateError(
            f"rows of parameters were shared by {saved.num_shards} ranks when the state was saved, "
            f"and are by {compression.num_shards} now (0: they are cut in another way): wrap the "
            "model as it was, or leave the state out"
        )
    entries = _by_store(compression, state, next(model.parameters()).device)
    stores = dict(_stores(compression))
    for prefix, store in stores.items():
        store.check(entries[prefix])
        check_finite(prefix, entries[prefix])
        kind = prefix.partition("/")[2]
        if kind == "residuals":
            check_residuals(compression, dist.get_rank(), entries[prefix], shapes)
        elif kind == "late":
            check_late(compression, entries[prefix], shapes)
        elif kind == "factors":
            check_factors(compression, entries[prefix], shapes)
    if not is_dealt_out_anew:
        check_inventory(state, dist.get_rank())  # last: others say what is wrong with an entry
    return saved, entries


def _by_store(
    compression: Compression, state: Mapping[str, Tensor], device: torch.device
) -> dict[str, dict[str, Tensor]]:
    """This rank's entries and the shared ones, by the prefix of the store that they belong to."""
    entries: dict[str, dict[str, Tensor]] = {prefix: {} for prefix, _ in _stores(compression)}
    own = f"rank{dist.get_rank()}/"
    about_all = (ARRANGEMENT, ORIGIN, inventory_of(dist.get_rank()))
    for entry, tensor in state.items():
        if entry.startswith(about_all) or not entry.startswith(("shared/", own)):
            continue
        prefix = "/".join(entry.split("/")[:2])
        if prefix not in entries:
            raise StateError(
                f"recipe {compression.recipe.name} has no use for the state's {entry!r}: "
                "load it into a model with the recipe that it was saved with"
            )
        entries[prefix][entry.removeprefix(f"{prefix}/")] = tensor.detach().to(device)
    return entries


def _under(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The entries of one store, by their names in it."""
    start = f"{prefix}/"
    return {e.removeprefix(start): tensor for e, tensor in state.items() if e.startswith(start)}


def _must_be_dealt_out(compression: Compression, saved: Arrangement) -> bool:
    """Whether a state was saved by ranks that kept other things than those at work do."""
    present, recipe = Arrangement.of(compression), compression.recipe
    return saved.size != present.size or (recipe.reduces_within and saved.hosts != present.hosts)


def _check_parameters(names: Collection[str], state: Mapping[str, Tensor]) -> None:
    """Raise if something is remembered of a parameter that the model does not have."""
    for entry in state:
        _, kind, name = (*entry.split("/", 2), "", "")[:3]
        if kind == "residuals":
            name = name.rpartition("/")[0]
        if kind in ("residuals", "late", "factors") and name not in names:
            raise StateError(
                f"the state holds {entry}, but the model has no parameter {name}: load it into the "
                "model that it was saved from"
            )
