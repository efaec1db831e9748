"""The two verbs: ``shard`` wraps a model and compresses, ``compress`` does only the latter."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Sequence

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from thinwire.comm.agreement import refused_together, require_agreement
from thinwire.comm.ledger import Ledger, LedgerReport
from thinwire.comm.sender import shared_sender
from thinwire.comm.topology import Topology, discover_topology
from thinwire.errors import ConfigError, StateError
from thinwire.patterns import check_patterns, check_shapes
from thinwire.recipe import Recipe
from thinwire.sharding import ddp, local_sgd
from thinwire.sharding.arguments import check_model, check_wrapped
from thinwire.sharding.compression import Compression
from thinwire.sharding.counters import watch_steps
from thinwire.sharding.kernels import compile_in_turn
from thinwire.sharding.plug import plug_in
from thinwire.sharding.support import check_supported
from thinwire.sharding.units import Unit, find_units
from thinwire.sharding.wrap import check_wrapping, wrap_ddp, wrap_fsdp

__all__ = ["compress", "compression_of", "ledger", "ledger_of", "shard"]

_WRAPPERS = (FSDPModule, DistributedDataParallel)

_compressions: weakref.WeakKeyDictionary[nn.Module, Compression] = weakref.WeakKeyDictionary()


def shard(
    model: nn.Module,
    recipe: Recipe,
    *,
    blocks: Sequence[nn.Module | list[nn.Module]] | None = None,
    mesh: DeviceMesh | None = None,
    overlap: bool = True,
) -> nn.Module:
    """Wrap a model as the recipe's stage says and compress its traffic. A collective call.

    Args:
        model: a plain model, the same on every rank, on the device where it will run.
        recipe: what travels in which format; every rank must pass the same.
        blocks: the modules that FSDP2 wraps one by one, the same on every rank; a list in it as
            one, for small modules that should travel together; by default the items of the model's
            outermost ``nn.ModuleList`` containers, small neighbours together as the recipe's
            ``group_bytes`` says. Not for stage 0.
        mesh: the 1-D device mesh of FSDP2; by default all ranks, or those of the host if the recipe
            is hybrid. Not for stage 0.
        overlap: on CPUs, send beside compute in a thread of its own; the numbers are the same
            without. On accelerators FSDP2's own streams overlap.

    Returns:
        The model under DDP for stage 0, the same object under FSDP2 otherwise. With local steps
        the model itself: the ranks meet after every ``local_steps`` steps of its optimizer.

    Raises:
        ConfigError: the recipe cannot be put into effect, or the recipe, the model or its blocks
            differ between ranks. What one rank refuses is refused on all.
        StateError: ``torch.distributed`` is not initialized.
    """
    with refused_together("thinwire.shard"):
        _check_recipe(recipe)
        check_model(model, overlap)
    _agree_on_recipe(recipe)
    with refused_together("thinwire.shard"):
        _check_support(model, recipe)
        _check_plain(model)
        check_wrapping(model, recipe, blocks, mesh)
    topology = _agree_on_parameters(model, recipe)
    if recipe.stage > 0:
        model = wrap_fsdp(model, recipe, topology, blocks, mesh)
    elif recipe.local_steps == 1:
        model = wrap_ddp(model)
    _attach(model, recipe, topology, overlap=overlap)
    return model


def compress(model: nn.Module, recipe: Recipe, *, overlap: bool = True) -> None:
    """Compress the traffic of a model that FSDP2 or DDP wraps already. A collective call.

    Nothing else about the model changes. Call it before the first forward pass, or between steps.

    Args:
        model: a model under ``fully_shard`` or ``DistributedDataParallel``.
        recipe: what travels in which format; every rank must pass the same.
        overlap: as for :func:`shard`.

    Raises:
        ConfigError: the model is not wrapped as the recipe's stage says, the recipe cannot be put
            into effect, or the recipe, the model or how it is wrapped differ between ranks. What
            one rank refuses is refused on all.
        StateError: ``torch.distributed`` is not initialized.
    """
    with refused_together("thinwire.compress"):
        _check_recipe(recipe)
        check_model(model, overlap)
    _agree_on_recipe(recipe)
    with refused_together("thinwire.compress"):
        _check_support(model, recipe)
        check_wrapped(model)
        _check_recipe_fits_wrapper(model, recipe)
    topology = _agree_on_parameters(model, recipe)
    _attach(model, recipe, topology, overlap=overlap)


def ledger(model: nn.Module) -> LedgerReport:
    """The bytes that this rank sent for a model since ``shard`` or ``compress``, as plain data.

    Raises:
        StateError: neither was called on the model.
    """
    return ledger_of(model).report()


def ledger_of(model: nn.Module) -> Ledger:
    """The ledger itself, which can be reset; complete, late reductions under way included.

    Raises:
        StateError: the model was neither sharded nor compressed by thinwire.
    """
    compression = compression_of(model)
    if compression.late is not None:
        compression.late.finish()
    return compression.ledger


def compression_of(model: nn.Module) -> Compression:
    """What the sockets of a model share: its recipe, its ledger and its residuals.

    Raises:
        StateError: the model was neither sharded nor compressed by thinwire.
    """
    if model not in _compressions:
        raise StateError(
            "this model has no ledger: call thinwire.shard or thinwire.compress first, and pass "
            "the module that it returned"
        )
    return _compressions[model]


def _check_recipe(recipe: Recipe) -> None:
    if not isinstance(recipe, Recipe):
        raise ConfigError(
            f"a recipe is expected, not {recipe!r}: use thinwire.recipes.zeropp(), or "
            "thinwire.recipes.parse_recipe(text)"
        )


def _agree_on_recipe(recipe: Recipe) -> None:
    if dist.is_initialized():
        # two names for the same fields are no disagreement
        fields = (field.name for field in dataclasses.fields(recipe) if field.name != "name")
        require_agreement("recipe", [f"{name}={getattr(recipe, name)!r}" for name in fields])


def _check_support(model: nn.Module, recipe: Recipe) -> None:
    check_supported(recipe)
    if model in _compressions:
        raise StateError(
            "this model's traffic is compressed already, and what is plugged in cannot be taken "
            "out: build the model anew for another recipe"
        )


def _check_plain(model: nn.Module) -> None:
    wrapper = next((m for m in model.modules() if isinstance(m, _WRAPPERS)), None)
    if wrapper is not None:
        raise ConfigError(
            f"the model is wrapped already ({type(wrapper).__name__}): use thinwire.compress on "
            "it, or pass the plain model to thinwire.shard"
        )


def _check_recipe_fits_wrapper(model: nn.Module, recipe: Recipe) -> None:
    """Raise unless a model is wrapped as the recipe says; how it was wrapped is past changing."""
    is_ddp = isinstance(model, DistributedDataParallel)
    if is_ddp != (recipe.stage == 0):
        wrapped, fitting = ("DDP", "stage=0") if is_ddp else ("FSDP2", "stage=1, 2 or 3")
        raise ConfigError(
            f"recipe {recipe.name} has stage={recipe.stage}, but for a model under {wrapped} it "
            f"must have {fitting}"
        )
    if recipe.local_steps > 1:
        raise ConfigError(
            f"recipe {recipe.name}: local_steps={recipe.local_steps} lets ranks train on their "
            "own, but DDP reduces at every step; use thinwire.shard on the plain model"
        )
    if recipe.group_bytes is not None:
        raise ConfigError(
            f"recipe {recipe.name}: group_bytes={recipe.group_bytes} decides how FSDP2 wraps the "
            "model; use thinwire.shard on the plain model, or pass fully_shard lists of modules "
            "and leave group_bytes out of the recipe"
        )
    if recipe.replica == "host":
        raise ConfigError(
            f"recipe {recipe.name}: replica={recipe.replica} decides how FSDP2 wraps the model; "
            "use thinwire.shard on the plain model, or pass reshard_after_forward=<ranks per "
            "host> to fully_shard and leave replica out of the recipe"
        )


def _agree_on_parameters(model: nn.Module, recipe: Recipe) -> Topology:
    """Who the ranks are, once all hold the same parameters and the recipe is in effect on them."""
    topology = discover_topology()
    listed = [
        f"{name} {list(p.shape)} {p.dtype} {'trained' if p.requires_grad else 'frozen'}"
        for name, p in model.named_parameters()
    ]
    require_agreement("model's list of parameters", listed)
    if recipe.stage == 0:
        # DDP makes rank 0's everyone's, one after another in one flat buffer
        buffers = [f"{name} {list(b.shape)} {b.dtype}" for name, b in model.named_buffers()]
        require_agreement("model's list of buffers", buffers)
    plain = model.module if isinstance(model, DistributedDataParallel) else model
    shapes = {name: p.shape for name, p in plain.named_parameters()}
    check_patterns(recipe, shapes)
    check_shapes(recipe, shapes)
    return topology


def _attach(model: nn.Module, recipe: Recipe, topology: Topology, *, overlap: bool) -> None:
    if recipe.staleness and dist.get_backend() != "gloo":
        raise ConfigError(
            f"recipe {recipe.name}: staleness={recipe.staleness} needs the threads that send "
            f"beside compute, which there are for gloo only, not for {dist.get_backend()}; leave "
            "staleness out"
        )
    sender = shared_sender() if overlap and dist.get_backend() == "gloo" else None
    compression = Compression(recipe, topology, Ledger(), sender)
    if all(parameter.device.type == "cpu" for parameter in model.parameters()):
        compile_in_turn(recipe, topology)
    if recipe.local_steps > 1:
        local_sgd.attach(model, compression)
    elif isinstance(model, DistributedDataParallel):
        with refused_together("the hook that compresses gradients"):
            ddp.attach(model, compression)
    else:
        plug_in(_agreed_units(model, recipe), model, compression)
    if not recipe.is_uncompressed:
        watch_steps(model, compression.count_step)
    _compressions[model] = compression


def _agreed_units(model: nn.Module, recipe: Recipe) -> list[Unit]:
    """The FSDP2 modules of a model, once all ranks have wrapped the same parameters together.

    Buffers of other sizes than the peers expect would end the process, not raise.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # the sharded form of a parameter tells its global shape
    with refused_together("the way in which the model is wrapped"):
        units = find_units(model, recipe)
    divided = [
        f"in block {unit.name!r}: {member.description}" for unit in units for member in unit.members
    ]
    require_agreement("division of the model into blocks that FSDP2 wraps", divided)
    return units
