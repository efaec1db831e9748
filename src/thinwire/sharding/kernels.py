"""Ranks share a cache of compiled kernels; one of them fills it, the others load it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from thinwire.comm.topology import Topology, gather_integers
from thinwire.formats import WireFormat, parse_format
from thinwire.recipe import Recipe
from thinwire.rules import with_other_bits
from thinwire.wire.preparation import prepare

__all__ = ["compile_in_turn", "prepare_in_turn"]


def compile_in_turn(recipe: Recipe, topology: Topology) -> None:
    """Have rank 0 compile, then the first rank of every host, then all. A collective call.

    All ranks at once would each compile the same kernels, four at a time on two cores.

    Args:
        recipe: says which formats will travel.
        topology: which ranks share a host.
    """
    if recipe.is_uncompressed or topology.size == 1:
        return
    rules = (recipe.weight_rule, recipe.grad_rule, recipe.grad_rule_within)
    # a single element, as is prepared, is a matrix too
    formats = [fmt.for_shape((1, 1)) for rule in rules if rule is not None for fmt in rule.formats]
    formats.append(parse_format(recipe.compute))  # of weights that travel exactly
    if recipe.adapts:
        formats += with_other_bits(recipe.grad_format)
    if recipe.feedback:
        formats.append(parse_format(recipe.residual))
    prepare_in_turn(formats, topology)


def prepare_in_turn(formats: Sequence[WireFormat], topology: Topology) -> None:
    """As :func:`compile_in_turn`, for formats that are named. A collective call.

    Args:
        formats: what will travel.
        topology: which ranks share a host.
    """
    rank = dist.get_rank()
    is_first_on_host = topology.hosts.index(topology.hosts[rank]) == rank
    # hosts may share a file system, or be namespaces of one machine: rank 0 goes ahead of all
    my_turn = 0 if rank == 0 else 1 if is_first_on_host else 2
    for turn in range(3):
        if turn == my_turn:
            prepare(formats, (torch.float32, torch.bfloat16))
        gather_integers(0)  # a barrier that every backend has
