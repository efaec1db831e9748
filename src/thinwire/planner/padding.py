"""How much of a sharded model is padding.

FSDP2 deals out whole rows: each rank has room for ceil(rows / ranks) of every parameter, and what
is missing is padding, which the first rank's share has room for too, and which PyTorch's own
collectives send. A mixture's experts, fused into a parameter of one row an expert, are padded 64
times where 512 ranks share 8 of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from thinwire.planner.payload import row_pieces
from thinwire.planner.setting import Setting
from thinwire.planner.workload import Parameter
from thinwire.quantities import format_figure, format_numbered
from thinwire.recipe import Recipe

__all__ = ["padding_factor", "padding_reasons"]

TOLD_FROM = 1.5  # times as large; usual models on usual clusters stay below 1.1
MOST_NAMED = 3


def padding_factor(setting: Setting, recipe: Recipe) -> float:
    """How many times as large padding makes the model that a recipe shards; 1.0: not at all."""
    if not _shards(recipe):
        return 1.0
    world = setting.sharing(recipe).size
    layers = (setting.root(), *setting.layers())
    held = sum(
        layer.count * world * row_pieces(parameter.shape, world)
        for layer in layers
        for parameter in layer.parameters
    )
    return held / max(1, sum(layer.count * layer.numel for layer in layers))


def padding_reasons(setting: Setting, recipes: Sequence[Recipe]) -> list[str]:
    """A sentence for each number of ranks whose shares are mostly padding.

    Args:
        setting: workload and cluster.
        recipes: what was planned.
    """
    padded: dict[int, list[Recipe]] = {}
    for recipe in recipes:
        if padding_factor(setting, recipe) > TOLD_FROM:
            padded.setdefault(setting.sharing(recipe).size, []).append(recipe)
    return [_reason(setting, world, found) for world, found in padded.items()]


def _reason(setting: Setting, world: int, recipes: Sequence[Recipe]) -> str:
    worst = max(
        (p for layer in (setting.root(), *setting.layers()) for p in layer.parameters),
        key=lambda parameter: _added(parameter, world),
    )
    rows = worst.shape[0] if worst.shape else 1
    names = ", ".join(recipe.name for recipe in recipes[:MOST_NAMED])
    if len(recipes) > MOST_NAMED:
        names += f" and {len(recipes) - MOST_NAMED} more"
    factor = format_figure(padding_factor(setting, recipes[0]))
    return (
        f"Padding makes the sharded model {factor} times as large ({names}): whole rows are dealt "
        f"out, as FSDP2 does, and {worst.name} has {format_numbered(rows, 'row')} for {world} "
        "ranks; fewer ranks that share it, such as those of one host (hybrid=true), need less."
    )


def _added(parameter: Parameter, world: int) -> int:
    return world * row_pieces(parameter.shape, world) - parameter.numel


def _shards(recipe: Recipe) -> bool:
    return recipe.stage > 0 and recipe.local_steps == 1
