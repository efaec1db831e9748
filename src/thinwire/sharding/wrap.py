"""Wrapping a plain model: FSDP2 or DDP around the right modules, as the recipe's stage says."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from thinwire.comm.agreement import refused_together
from thinwire.comm.topology import Topology
from thinwire.errors import ConfigError
from thinwire.recipe import Recipe
from thinwire.sharding.arguments import check_blocks, check_mesh, check_replicable
from thinwire.sharding.blocks import find_blocks, gather_for_every_one
from thinwire.sharding.hybrid import mesh_within_host

__all__ = ["check_wrapping", "wrap_ddp", "wrap_fsdp"]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def check_wrapping(
    model: nn.Module,
    recipe: Recipe,
    blocks: Sequence[nn.Module | list[nn.Module]] | None,
    mesh: DeviceMesh | None,
) -> None:
    """Raise if a model could not be wrapped as the recipe and the caller ask for together.

    Raises:
        ConfigError: ``blocks`` or ``mesh`` contradict the recipe or the model, or stage 0 has
            nothing to train.
    """
    if recipe.stage == 0 and (blocks is not None or mesh is not None):
        raise ConfigError(
            "blocks and mesh are for stages 1 to 3: stage 0 is DDP, which wraps the whole "
            "model over all ranks; leave them out"
        )
    if blocks is not None and recipe.group_bytes is not None:
        raise ConfigError(
            f"recipe {recipe.name}: group_bytes={recipe.group_bytes} chooses which blocks travel "
            "together, and so does blocks=[...]; leave one of them out"
        )
    if mesh is not None and recipe.hybrid:
        raise ConfigError(
            "mesh and hybrid=true: hybrid shards over the ranks of each host, so there is no mesh "
            "to choose; leave one of them out"
        )
    check_mesh(mesh)
    if blocks is not None:
        check_blocks(model, blocks)
    if recipe.stage == 0:
        check_replicable(model)


def wrap_ddp(model: nn.Module) -> DistributedDataParallel:
    """The model under DDP, on the device where its parameters are."""
    return DistributedDataParallel(model)


def wrap_fsdp(
    model: nn.Module,
    recipe: Recipe,
    topology: Topology,
    blocks: Sequence[nn.Module | list[nn.Module]] | None,
    mesh: DeviceMesh | None,
) -> nn.Module:
    """The model under FSDP2: every block by itself or with its neighbours, then what remains.

    Args:
        model: a plain model.
        recipe: its stage, replica and dtypes decide the arguments of ``fully_shard``.
        topology: which ranks share a host.
        blocks: the modules to wrap one by one, a list as one; ``None``: :func:`find_blocks`, in
            groups of the recipe's ``grouped_bytes``.
        mesh: as for ``fully_shard``; ``None``: all ranks, or under ``hybrid`` those of the host.

    Raises:
        ConfigError: a replica or a shard per host is asked for on hosts of unequal size, or a
            parameter has no dimension or no elements.
    """
    if recipe.hybrid:
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        mesh = mesh_within_host(topology, device.type)
    with refused_together("the way in which the model is to be wrapped"):
        _fully_shard(model, recipe, topology, blocks, mesh)
    return model


def _fully_shard(
    model: nn.Module,
    recipe: Recipe,
    topology: Topology,
    blocks: Sequence[nn.Module | list[nn.Module]] | None,
    mesh: DeviceMesh | None,
) -> None:
    _prepare_parameters(model, recipe)
    if blocks is None:
        blocks = find_blocks(model, recipe.grouped_bytes, DTYPES[recipe.compute].itemsize)
    if not blocks:
        warnings.warn(
            "no nn.ModuleList of blocks was found, so the whole model becomes one FSDP2 module "
            "and all its parameters are whole at once; pass blocks=[...] to thinwire.shard",
            stacklevel=4,
        )
    reduce_dtype = DTYPES[recipe.grads] if recipe.is_uncompressed else torch.float32
    policy = MixedPrecisionPolicy(param_dtype=DTYPES[recipe.compute], reduce_dtype=reduce_dtype)
    reshard = _reshard_after_forward(recipe, topology)
    for module in (*blocks, model):
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
        if isinstance(module, list):
            gather_for_every_one(module)


def _prepare_parameters(model: nn.Module, recipe: Recipe) -> None:
    """Make parameters such as FSDP2 takes them: with elements, in the order of their indices."""
    for name, parameter in model.named_parameters():
        if parameter.dim() == 0:
            raise ConfigError(
                f"recipe {recipe.name}: parameter {name} has no dimension, and FSDP2 cuts along "
                "the first one; give it the shape [1], or use stage=0"
            )
        if parameter.requires_grad and not parameter.numel():
            raise ConfigError(
                f"recipe {recipe.name}: parameter {name} of shape {tuple(parameter.shape)} has no "
                "elements, which FSDP2 cannot reduce; freeze it with requires_grad_(False), or use "
                "stage=0"
            )
        if not parameter.is_contiguous():
            # channels_last and transposed weights: the order in memory is no part of the value
            parameter.data = parameter.data.contiguous()


def _reshard_after_forward(recipe: Recipe, topology: Topology) -> bool | int | None:
    """FSDP2's argument: ``None`` is its default, which spares the root the second gather."""
    if recipe.stage < 3:
        return False
    if recipe.replica != "host":
        return None
    per_host = topology.ranks_per_host
    if per_host is None:
        raise ConfigError(
            f"recipe {recipe.name}: replica=host needs the same number of consecutive ranks on "
            "every host; start as many ranks on each host, or leave replica out"
        )
    # one rank per host holds the whole replica, which to FSDP2 is not resharding at all
    return False if per_host == 1 else per_host
