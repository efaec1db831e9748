"""What this version can put into effect. A field that it cannot is refused, never ignored."""

from __future__ import annotations

from thinwire.errors import ConfigError
from thinwire.formats import parse_format
from thinwire.recipe import Recipe

__all__ = ["check_supported"]


def check_supported(recipe: Recipe) -> None:
    """Raise if a field of the recipe would not be in effect.

    Raises:
        ConfigError: names the field and the value that works.
    """
    defaults = Recipe()
    for field in (
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
    for field in ("weights", "grads", "grads_within"):
        text = getattr(recipe, field)
        if text is not None and parse_format(text).family == "lowrank":
            raise ConfigError(
                f"recipe {recipe.name}: {field}={text} needs whole matrices, and what travels here "
                "are slices of them; use another format, for example int4/128"
            )
    _check_feedback(recipe)
    if recipe.local_steps > 1 and recipe.stage > 0:
        raise ConfigError(
            f"recipe {recipe.name}: local_steps={recipe.local_steps} lets every rank train a whole "
            f"model on its own, and stage={recipe.stage} shards the model; use stage=0, or leave "
            "local_steps at 1"
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


def _check_feedback(recipe: Recipe) -> None:
    """Raise if there is nothing to feed back: gradients are summed in fp32, and sent in fp32."""
    if recipe.feedback and recipe.grads == "fp32" and recipe.grads_within in (None, "fp32"):
        raise ConfigError(
            f"recipe {recipe.name}: feedback=True would have no effect, for grads=fp32 loses "
            "nothing; leave feedback out, or choose a narrower format, for example grads=int4/128"
        )
