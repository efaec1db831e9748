"""What a step costs besides arithmetic, codecs and messages, as calibrated for a kind of wrapping.

Hooks, views and launches cost every layer alike. Memory that caches do not hold, pages that are
touched for the first time and waits for the slowest rank grow with the parameters. Both are spent
while forward and backward run, about half in each (seen with tiny models under stage 3, processor
time by phase), so that a wire that works beside compute hides them. The agreement on a finite step
and the launch of the optimizer come after backward, where nothing hides them.
"""

from __future__ import annotations

from dataclasses import dataclass

from thinwire.planner.hardware import Device
from thinwire.planner.workload import Layer
from thinwire.recipe import Recipe

__all__ = ["Overhead", "wrapping"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Seconds of one recipe's overheads on one device.

    Attributes:
        unit_s: of a micro-batch, for every layer and the root.
        parameter_s: of a micro-batch, for every parameter.
        after_s: of a step, after the last backward.
    """

    unit_s: float
    parameter_s: float
    after_s: float

    @classmethod
    def of(cls, recipe: Recipe, device: Device) -> Overhead:
        """As the device's numbers say."""
        kind = wrapping(recipe)
        return cls(
            unit_s=device.unit_s[kind],
            parameter_s=device.parameter_s[kind],
            after_s=device.step_s[kind],
        )

    def layer_s(self, layer: Layer) -> float:
        """Forward and backward of one layer together."""
        return self.unit_s + self.parameter_s * layer.numel


def wrapping(recipe: Recipe) -> str:
    """What wraps a model under a recipe: one of ``thinwire.planner.hardware.OVERHEADS``."""
    if recipe.stage == 0:
        # between the meetings of local steps there is no hook
        is_hooked = not recipe.is_uncompressed and recipe.local_steps == 1
        return "hooked" if is_hooked else "replicated"
    if recipe.is_uncompressed:
        return "stock"
    return "compressed" if recipe.resident_format is None else "resident"
