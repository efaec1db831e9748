"""The blocks of a model that FSDP2 wraps: which there are, and which of them travel together.

Note: the order of runs. FSDP2 takes modules that it was given as a list for one module which runs
from the first of them that is called to the last. It frees their weights when the last has run, and
gathers them again when backward reaches the output of that last one. Where the modules of a group
do not follow each other, backward may reach another one of them first, or only: heads side by side,
a layer that is left out, one loss for each of two towers. So every one asks for the weights itself
(:func:`gather_for_every_one`), which does nothing where they are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.utils._pytree import tree_leaves

from thinwire.grouping import consecutive_groups

__all__ = ["find_blocks", "gather_for_every_one"]

Blocks = nn.Module | list[nn.Module]


def find_blocks(model: nn.Module, group_bytes: int, element_bytes: int) -> list[Blocks]:
    """The repeated blocks of a model: the items of its outermost ``nn.ModuleList`` containers.

    Each becomes one FSDP2 module, so that only one block's parameters are whole at a time; small
    neighbours in a container become one together.

    Args:
        model: a plain model.
        group_bytes: that blocks of a group have together at most; 0: none are grouped.
        element_bytes: of one parameter's element while it is whole.
    """
    return [
        group[0] if len(group) == 1 else group
        for blocks in _containers(model)
        for group in _groups(blocks, group_bytes, element_bytes)
    ]


def _containers(module: nn.Module) -> Iterator[list[nn.Module]]:
    """The items of every outermost container that have parameters, each item once."""
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            # a block that is listed several times shares its weights with itself
            yield [item for item in dict.fromkeys(child) if any(True for _ in item.parameters())]
        else:
            yield from _containers(child)


def _groups(
    blocks: Sequence[nn.Module], group_bytes: int, element_bytes: int
) -> Iterator[list[nn.Module]]:
    sizes_bytes = [element_bytes * sum(p.numel() for p in block.parameters()) for block in blocks]
    for indices in consecutive_groups(sizes_bytes, group_bytes):
        yield [blocks[index] for index in indices]


def gather_for_every_one(modules: Sequence[nn.Module]) -> None:
    """Have the weights of a group gathered when backward reaches any of its modules first.

    Args:
        modules: which ``fully_shard`` was given as a list.
    """
    for module in modules:
        module.register_forward_hook(_gather_in_backward)


def _gather_in_backward(module: nn.Module, _args: Any, output: object) -> None:
    if torch.is_grad_enabled():
        fully_sharded = cast(FSDPModule, module)
        for leaf in tree_leaves(output):
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                leaf.register_hook(lambda _: fully_sharded.unshard())  # type: ignore[no-untyped-call]
