"""What this version can put into effect. A field that it cannot is refused, never ignored."""

from __future__ import annotations

from thinwire.errors import ConfigError
from thinwire.recipe import Recipe

__all__ = ["check_supported"]


def check_supported(recipe: Recipe) -> None:
    """Raise if a field of the recipe would not be in effect.

    Raises:
        ConfigError: names the field and the value that works.
    """
    defaults = Recipe()
    for field in (
        "feedback",
        "local_steps",
        "optimizer_states",
        "offload",
        "activations",
        "qat",
        "adaptive_bits",
        "accumulate",
    ):
        value, default = getattr(recipe, field), getattr(defaults, field)
        if value != default:
            raise ConfigError(
                f"recipe {recipe.name}: {field}={value} can be planned but not yet trained with; "
                f"leave {field} at {default}"
            )
    if recipe.stage == 1:
        raise ConfigError(
            f"recipe {recipe.name}: stage=1 can be planned but not yet trained with; "
            "use stage=2, which keeps less in memory and sends as much"
        )
    resident = recipe.resident_format
    if resident is not None and str(resident) not in ("fp32", "bf16"):
        raise ConfigError(
            f"recipe {recipe.name}: replica={recipe.replica} can be planned but not yet trained "
            "with; keep the replica in bf16 or fp32"
        )
    if recipe.stage == 0 and recipe.compute != "fp32":
        raise ConfigError(
            f"recipe {recipe.name}: DDP computes in the parameters' dtype; use compute=fp32, and "
            "torch.autocast around the forward pass for bf16"
        )
