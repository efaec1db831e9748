"""What `shard` and `compress` are given, looked at before anything is changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from thinwire.errors import ConfigError
from thinwire.quoting import shortened

__all__ = ["check_blocks", "check_mesh", "check_model", "check_replicable", "check_wrapped"]


def check_model(model: object, overlap: object) -> None:
    """Raise unless a module is given whose parameters exist.

    Raises:
        ConfigError: ``model`` is no module, or lazy; ``overlap`` is neither true nor false.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"a model is expected, a torch.nn.Module, not {_described(model)}")
    if not isinstance(overlap, bool):
        raise ConfigError(f"overlap: {_described(overlap)} is not True or False")
    for name, tensor in _tensors(model):
        if isinstance(tensor, (UninitializedParameter, UninitializedBuffer)):
            raise ConfigError(
                f"{name} has no shape yet, for its module is lazy: run one forward pass on every "
                "rank first"
            )


def check_replicable(model: nn.Module) -> None:
    """Raise unless a plain model can be whole on every rank and trained there.

    Raises:
        ConfigError: a tensor is on the meta device, or no parameter is trained.
    """
    for name, tensor in _tensors(model):
        if tensor.device.type == "meta":
            raise ConfigError(
                f"{name} is on the meta device, and stage 0 makes rank 0's values everyone's: give "
                "it values first, for example by model.to_empty(device=...) and its initialization"
            )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(
            "no parameter of the model is trained, so there is nothing to reduce: unfreeze what is "
            "to be trained before thinwire.shard"
        )


def check_wrapped(model: nn.Module) -> None:
    """Raise unless something wraps a model that can be plugged into.

    Raises:
        ConfigError: it is a plain model.
    """
    if isinstance(model, DistributedDataParallel):
        return
    if not any(isinstance(module, FSDPModule) for module in model.modules()):
        raise ConfigError(
            "the model is under neither fully_shard nor DistributedDataParallel: apply one of them "
            "first, or call thinwire.shard, which does both"
        )


def check_mesh(mesh: object) -> None:
    """Raise unless a mesh is one, or left out.

    Raises:
        ConfigError: it is something else.
    """
    if mesh is not None and not isinstance(mesh, DeviceMesh):
        raise ConfigError(
            f"mesh: a torch.distributed.device_mesh.DeviceMesh is expected, not {_described(mesh)}"
        )


def check_blocks(model: nn.Module, blocks: object) -> None:
    """Raise unless blocks are parts of a model that FSDP2 can wrap one after another.

    Args:
        model: the whole.
        blocks: what the user calls its blocks.

    Raises:
        ConfigError: they are no list of modules of this model, one is there twice, comes after one
            that it is in, or cannot be called.
    """
    if not isinstance(blocks, (list, tuple)):
        raise ConfigError(
            f"blocks: a list of modules of the model is expected, not {_described(blocks)}"
        )
    names = {id(module): name for name, module in model.named_modules()}
    seen: set[int] = set()
    for block in blocks:
        together = block if isinstance(block, list) else [block]
        if not together:
            raise ConfigError("blocks: an empty list among them wraps nothing; leave it out")
        for module in together:
            _check_block(module, model, names, seen)
        for module in together:
            seen.update(id(part) for part in module.modules())


def _check_block(block: object, model: nn.Module, names: dict[int, str], seen: set[int]) -> None:
    if not isinstance(block, nn.Module):
        raise ConfigError(f"blocks: modules are expected, not {_described(block)}")
    name = names.get(id(block))
    if name is None:
        raise ConfigError(
            f"blocks: a {type(block).__name__} among them is no part of this model, so nothing of "
            "it would be wrapped; pass modules of the model itself, not of a copy"
        )
    if block is model:
        raise ConfigError("blocks: the whole model is among them; it is wrapped last in any case")
    if isinstance(block, (nn.ModuleList, nn.ModuleDict)):
        raise ConfigError(
            f"blocks: {name} is a container, which is never called itself; pass its items"
        )
    if id(block) in seen:
        raise ConfigError(
            f"blocks: {name} is there twice, or after a block that it is a part of; list a block "
            "once, and what it contains before it"
        )


def _tensors(model: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _described(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"a {type(value).__name__}"
    return f"{shortened(repr(value))} ({type(value).__name__})"
