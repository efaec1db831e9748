"""What one FSDP2 module communicates: its parameters, in the order of its flat buffer.

FSDP2 gives its sockets a flat buffer and nothing else. Which parameters lie in it follows from
the module tree: those of the module and of its descendants, up to the next FSDP2 module, in the
order of a depth-first walk that visits children before their parent, each once. Modules that
``fully_shard`` was given as a list travel as one, in the order of the list. The sizes are checked
against the buffer at every call.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard

from thinwire.comm.layout import Piece, ShardLayout, row_piece_numel
from thinwire.errors import ConfigError
from thinwire.formats import WireFormat, parse_format
from thinwire.recipe import Recipe
from thinwire.rules import FormatSource

__all__ = ["CAST_NAMES", "Member", "Unit", "cast_format", "find_units"]

CAST_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One parameter of a unit.

    Attributes:
        owner: the module that holds it, and ``attribute``, the name it has there. FSDP2 swaps the
            parameter object between its sharded and unsharded form; the pair finds the present one.
        name: its full name in the model.
        shape: its global shape.
        dtype: the dtype in which it is kept.
        piece_numel: elements that a rank's slot of the flat buffer reserves for it.
        world_size: number of ranks that share it.
        is_replicated: whether groups of ranks hold equal shards (HSDP).
    """

    owner: nn.Module
    attribute: str
    name: str
    shape: torch.Size
    dtype: torch.dtype
    piece_numel: int
    world_size: int
    is_replicated: bool

    @property
    def parameter(self) -> nn.Parameter:
        """The parameter in its present form."""
        found: nn.Parameter = getattr(self.owner, self.attribute)
        return found

    @property
    def is_trained(self) -> bool:
        """Whether it takes part in gradient reduction now; users freeze and unfreeze."""
        return self.parameter.requires_grad

    @property
    def description(self) -> str:
        """What must be equal on every rank for buffers to fit."""
        dealt = f"{self.piece_numel} elements on each of {self.world_size} ranks"
        copies = ", replicated" if self.is_replicated else ""
        return f"{self.name} {list(self.shape)} {self.dtype}, {dealt}{copies}"

    @property
    def sharded(self) -> DTensor | None:
        """The sharded parameter, or ``None`` while it is whole."""
        parameter = self.parameter
        return parameter if isinstance(parameter, DTensor) else None


class Unit:
    """The parameters of one FSDP2 module and the layouts of its collectives.

    Args:
        module: the FSDP2 module.
        name: its full name in the model.
        members: its parameters in the order of the flat buffer.
        recipe: decides which of them travel exactly.
    """

    def __init__(
        self, module: FSDPModule, name: str, members: Iterable[Member], recipe: Recipe
    ) -> None:
        self.module = module
        self.name = name
        self.members = tuple(members)
        self._recipe = recipe
        self._all_reduce_hook: Callable[[Tensor], None] | None = None
        # formats that are chosen anew leave, and take their layouts with them
        self._layouts: weakref.WeakKeyDictionary[
            FormatSource, dict[tuple[object, ...], ShardLayout]
        ] = weakref.WeakKeyDictionary()

    @property
    def world_size(self) -> int:
        """Number of ranks that share the unit's parameters."""
        return self.members[0].world_size if self.members else 1

    @property
    def slot_numel(self) -> int:
        """Elements of one rank's slot when all parameters are in the buffer."""
        return sum(member.piece_numel for member in self.members)

    @property
    def trained(self) -> tuple[Member, ...]:
        """The parameters whose gradients are reduced now."""
        return tuple(member for member in self.members if member.is_trained)

    def set_all_reduce_hook(self, hook: Callable[[Tensor], None]) -> None:
        """Have FSDP2 call ``hook`` with what every reduce-scatter of the unit returned."""
        self.module.set_all_reduce_hook(hook)
        self._all_reduce_hook = hook

    @property
    def has_foreign_all_reduce_hook(self) -> bool:
        """Whether a user plugged in ``set_all_reduce_hook``; FSDP2 has no public way to ask.

        If FSDP2's internals are not as they were, the answer is yes.
        """
        try:
            groups = self.module._get_fsdp_state()._fsdp_param_groups
            hooks = [group._all_reduce_hook for group in groups]
        except AttributeError:
            return True
        return any(hook is not None and hook is not self._all_reduce_hook for hook in hooks)

    def is_exact(self, member: Member) -> bool:
        """Whether a parameter travels uncompressed."""
        return self._recipe.travels_exactly(member.name, member.shape)

    def layout(
        self, members: tuple[Member, ...], formats: FormatSource, exact: WireFormat
    ) -> ShardLayout:
        """The layout of a buffer that holds ``members``.

        Args:
            members: parameters of this unit, in order.
            formats: how each travels.
            exact: how it travels if the recipe wants it uncompressed: a cast to the buffer's dtype.
        """
        layouts = self._layouts.setdefault(formats, {})
        key = (exact, *(member.name for member in members))
        if key not in layouts:
            layouts[key] = ShardLayout(
                (
                    Piece(
                        name=member.name,
                        numel=member.shape.numel(),
                        piece_numel=member.piece_numel,
                        format=exact if self.is_exact(member) else formats.format_of(member.name),
                    )
                    for member in members
                ),
                self.world_size,
            )
        return layouts[key]


def cast_format(dtype: torch.dtype) -> WireFormat:
    """The format that leaves a dtype as it is."""
    return parse_format(CAST_NAMES[dtype])


def find_units(model: nn.Module, recipe: Recipe) -> list[Unit]:
    """The units of a model's FSDP2 modules, in the order of ``model.named_modules()``.

    Args:
        model: a model to which ``fully_shard`` was applied; parameters must be sharded now.
        recipe: decides the format of each parameter.

    Raises:
        ConfigError: a parameter is sharded in a way that the compressed collectives do not know.
    """
    names = {module: name for name, module in model.named_modules()}
    units = []
    listed: set[object] = set()
    for module, name in names.items():
        if isinstance(module, FSDPModule) and module not in listed:
            together = {part: names[part] for part in _travelling_with(module)}
            listed.update(together)
            units.append(Unit(module, name, _members(together), recipe))
    return units


def _travelling_with(module: FSDPModule) -> tuple[nn.Module, ...]:
    """The modules of one ``fully_shard``; FSDP2 has no public way to ask.

    If FSDP2's internals are not as they were, the module counts alone, and where it is not, its
    buffer's size tells.
    """
    try:
        return module._get_fsdp_state()._modules
    except AttributeError:
        return (cast(nn.Module, module),)


def _members(modules: Mapping[nn.Module, str]) -> Iterator[Member]:
    """The parameters of the modules of a unit, given with their names in the model."""
    seen: set[int] = set()
    managed = (_managed_modules(module, name) for module, name in modules.items())
    for owner, path in itertools.chain.from_iterable(managed):
        for attribute, parameter in owner.named_parameters(recurse=False):
            # what fully_shard was told to ignore stays an ordinary tensor
            if id(parameter) in seen or not isinstance(parameter, DTensor):
                continue
            seen.add(id(parameter))
            name = f"{path}.{attribute}" if path else attribute
            yield _member(owner, attribute, name, parameter)


def _managed_modules(module: nn.Module, prefix: str) -> Iterator[tuple[nn.Module, str]]:
    """The module's descendants and itself, children first, not entering the next FSDP2 module."""
    for child_name, child in module.named_children():
        if not isinstance(child, FSDPModule):
            yield from _managed_modules(child, f"{prefix}.{child_name}" if prefix else child_name)
    yield module, prefix


def _member(owner: nn.Module, attribute: str, name: str, parameter: DTensor) -> Member:
    shards = [
        (placement.dim, size)
        for placement, size in zip(parameter.placements, parameter.device_mesh.shape, strict=True)
        if isinstance(placement, Shard)
    ]
    if len(shards) > 1:
        raise ConfigError(
            f"parameter {name} is sharded over two mesh dimensions ({parameter.placements}): "
            "compression knows one; leave tensor parallelism out, or that module unwrapped"
        )
    dim, world_size = shards[0] if shards else (0, 1)
    shape = parameter.shape
    # FSDP2 pads rows only; along any other dimension it insists on an even split
    piece_numel = row_piece_numel(shape, world_size) if dim == 0 else shape.numel() // world_size
    return Member(
        owner=owner,
        attribute=attribute,
        name=name,
        shape=shape,
        dtype=parameter.dtype,
        piece_numel=piece_numel,
        world_size=world_size,
        is_replicated=len(shards) < parameter.device_mesh.ndim,
    )
