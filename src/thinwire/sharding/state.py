"""What compression remembers from step to step, as plain tensors for a checkpoint.

    shared/...      equal on all ranks: counters, right factors, anchors and outer momentum, and the
                    late gradients of stage 0
    rank3/...       rank 3's own: residuals, rows of replicas, and the late gradients of shards

A checkpoint that every rank writes by itself, such as ``torch.save``, takes all of it. One that all
ranks write together keeps a single copy of tensors of one name, which these names allow for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from thinwire.errors import StateError
from thinwire.sharding.attach import compression_of
from thinwire.sharding.compression import Compression, Store
from thinwire.wire.feedback import Residuals

__all__ = ["blank_compression_state", "compression_state", "load_compression_state"]

WORLD_SIZE = "shared/world_size"
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
    state = {WORLD_SIZE: torch.tensor(compression.topology.size)}
    for prefix, store in _stores(compression):
        state |= {f"{prefix}/{name}": tensor for name, tensor in store.state().items()}
    return state


def load_compression_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Continue from what :func:`compression_state` returned. Not a collective call.

    Load weights and optimizer states too, and the random number generators that the model uses.

    Args:
        model: sharded or compressed anew, with the same recipe and number of ranks.
        state: this rank's entries, and perhaps those of others, which are left alone; copied.

    Raises:
        StateError: the state is of another number of ranks, or does not fit the model or its
            recipe.
    """
    compression = compression_of(model)
    _check_world_size(compression, state)
    device = next(model.parameters()).device
    stores = dict(_stores(compression))
    loaded: dict[str, dict[str, Tensor]] = {prefix: {} for prefix in stores}
    own = f"rank{dist.get_rank()}/"
    for entry, tensor in state.items():
        if entry == WORLD_SIZE or not entry.startswith(("shared/", own)):
            continue
        prefix = "/".join(entry.split("/")[:2])
        if prefix not in stores:
            raise StateError(
                f"recipe {compression.recipe.name} has no use for the state's {entry!r}: "
                "load it into a model with the recipe that it was saved with"
            )
        loaded[prefix][entry.removeprefix(f"{prefix}/")] = tensor.detach().to(device)
    _check_parameters(model, loaded)
    for prefix, store in stores.items():
        store.load(loaded[prefix])
    compression.choose_formats()


def blank_compression_state(
    metadata: Metadata, *, prefix: str = "compression"
) -> dict[str, Tensor]:
    """Tensors of the sizes of a saved state, for ``torch.distributed.checkpoint.load`` to fill.

    A model that has not taken a step yet cannot tell what it will remember; the checkpoint can.

    Args:
        metadata: of the checkpoint: ``FileSystemReader(path).read_metadata()``.
        prefix: the name under which the state was saved.

    Returns:
        The entries that are shared or this rank's own, without meaningful values.

    Raises:
        StateError: the checkpoint holds no state of that name.
    """
    wanted = (f"{prefix}.shared/", f"{prefix}.rank{dist.get_rank()}/")
    blank = {
        name.removeprefix(f"{prefix}."): torch.empty(item.size, dtype=item.properties.dtype)
        for name, item in metadata.state_dict_metadata.items()
        if isinstance(item, TensorStorageMetadata) and name.startswith(wanted)
    }
    if not blank:
        raise StateError(
            f"the checkpoint holds no compression state under {prefix!r}: save "
            f"{{{prefix!r}: thinwire.compression_state(model)}} with it, or train on without"
        )
    return blank


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


def _check_world_size(compression: Compression, state: Mapping[str, Tensor]) -> None:
    if WORLD_SIZE not in state:
        raise StateError(
            "this is no compression state: pass what thinwire.compression_state returned"
        )
    saved, size = int(state[WORLD_SIZE]), compression.topology.size
    if saved != size:
        raise StateError(
            f"the state is that of {saved} ranks and cannot be dealt out to {size}: start as many "
            "ranks as saved it, or leave it out and train on with fresh residuals"
        )


def _check_parameters(model: nn.Module, loaded: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Raise if something is remembered of a parameter that the model does not have."""
    names = {name.removeprefix("module.") for name, _ in model.named_parameters()}
    for prefix, entries in loaded.items():
        kind = prefix.split("/")[1]
        for entry in entries if kind in ("residuals", "late", "factors") else ():
            name = entry.rpartition("/")[0] if kind == "residuals" else entry
            if name not in names:
                raise StateError(
                    f"the state holds {prefix}/{entry}, but the model has no parameter {name}: "
                    "load it into the model that it was saved from"
                )
