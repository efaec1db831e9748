"""What is asked of the tensors of a state before any of them is loaded.

A residual that is not finite would spoil every later step, and one of another size would be noticed
in the middle of a backward pass, on one rank, while the others wait.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

from thinwire.comm.layout import row_piece_numel
from thinwire.errors import StateError
from thinwire.sharding.arrangement import Arrangement
from thinwire.sharding.compression import Compression
from thinwire.sharding.portions import Gradient, portions_of
from thinwire.wire.feedback import Residuals
from thinwire.wire.residual import Residual

__all__ = [
    "check_factors",
    "check_finite",
    "check_late",
    "check_residuals",
    "check_tensors",
    "digests",
]

Shapes = Mapping[str, torch.Size]

# A replica's rows may hold whatever weights do; a divisor that is not known is not a number.
_FINITE = ("factors", "late", "outer", "residuals")


def check_tensors(state: Mapping[str, Tensor]) -> None:
    """Raise unless it is a mapping of tensors."""
    if not isinstance(state, Mapping):
        raise StateError(
            f"a state is a dict of tensors, not {type(state).__name__}: pass what "
            "thinwire.compression_state returned"
        )
    for entry, tensor in state.items():
        if not isinstance(tensor, Tensor):
            raise StateError(
                f"the state's {entry!r} is no tensor but {type(tensor).__name__}: pass what "
                "thinwire.compression_state returned"
            )


def check_finite(prefix: str, entries: Mapping[str, Tensor]) -> None:
    """Raise unless what a store takes is finite, where every later step relies on it.

    Args:
        prefix: names the store: ``"rank0/residuals"``.
        entries: what it takes.
    """
    for name, tensor in entries.items():
        if prefix.partition("/")[2] in _FINITE and tensor.is_floating_point():
            _require_finite(f"{prefix}/{name}", tensor)


def check_residuals(
    compression: Compression, rank: int, residuals: Mapping[str, Tensor], shapes: Shapes
) -> None:
    """Raise unless residuals are those that a rank keeps under the recipe, and finite.

    Where parameters are not cut by rows, sizes are checked when they are next encoded.

    Args:
        compression: of the model that continues.
        rank: whose they are.
        residuals: by ``"parameter/part"``.
        shapes: the global shape of every parameter, by name.
    """
    feedback, arrangement = compression.feedback, Arrangement.of(compression)
    if not isinstance(feedback, Residuals) or not arrangement.num_shards:
        return
    portions = portions_of(compression.recipe, arrangement)
    for entry, tensor in residuals.items():
        name, _, part = entry.rpartition("/")
        gradient = Gradient(name=name, shape=shapes[name])
        sizes = {p.part: len(p.elements) for p in portions.kept(gradient, rank)}
        if part not in sizes:
            raise StateError(
                f"recipe {compression.recipe.name} keeps no residual {part!r} of {name}: load the "
                "state with the recipe that it was saved with, or leave it out"
            )
        fmt = feedback.policy.format
        residual = Residual(sizes[part], fmt, tensor.device, undoable=False)
        residual.load(tensor)
        _require_finite(f"residual {entry}", residual.values())


def check_late(compression: Compression, late: Mapping[str, Tensor], shapes: Shapes) -> None:
    """Raise unless late gradients have the sizes that the next reduction hands out."""
    num_shards = compression.num_shards
    for name, tensor in late.items():
        shape = shapes[name]
        numel = row_piece_numel(shape, num_shards) if num_shards > 1 else shape.numel()
        if not tensor.is_floating_point() or (num_shards and tensor.numel() != numel):
            raise StateError(
                f"the late gradient of {name} ({tensor.dtype}, {tensor.numel()} elements) is not "
                f"the {numel} floats that are reduced here: load the state into the model that it "
                "was saved from, with the same recipe, or leave it out"
            )


def check_factors(compression: Compression, factors: Mapping[str, Tensor], shapes: Shapes) -> None:
    """Raise unless right factors are those of the recipe's ranks and the model's matrices."""
    for name, tensor in factors.items():
        layout = compression.recipe.grad_rule.format_of(name).factors_of(shapes[name])
        if layout is None or tensor.shape != (layout.num_factors, layout.columns):
            raise StateError(
                f"the right factor of {name}, of shape {tuple(tensor.shape)}, is not what recipe "
                f"{compression.recipe.name} keeps: load the state into the model that it was saved "
                "from, with the same recipe, or leave it out"
            )


def digests(state: Mapping[str, Tensor]) -> list[str]:
    """All that must be equal on every rank, to the bit: every entry and what is in it."""
    return [_digest(entry, state[entry]) for entry in sorted(state) if entry.startswith("shared/")]


def _digest(entry: str, tensor: Tensor) -> str:
    values = tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8)
    digest = hashlib.blake2b(values.numpy().data, digest_size=16).hexdigest()
    return f"{entry} {list(tensor.shape)} {tensor.dtype} of digest {digest}"


def _require_finite(entry: str, tensor: Tensor) -> None:
    if not tensor.isfinite().all():
        raise StateError(
            f"the state's {entry!r} holds values that are not finite, which would spoil every "
            "later step: load an earlier state, or leave the state out"
        )
