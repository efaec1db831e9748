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
        "optimizer_states",
        "offload",
        "activations",
        "qat",
    ):
        value, default = getattr(recipe, field), getattr(defaults, field)
        if value != default:
            raise ConfigError(
                f"recipe {recipe.name}: {field}={value} can be planned but not yet trained with; "
                f"leave {field} at {default}"
            )
    _check_slices(recipe)
    _check_losses(recipe)
    _check_staleness(recipe)
    _check_adaptive(recipe)
    if recipe.local_steps > 1 and recipe.stage > 0:
        raise ConfigError(
            f"recipe {recipe.name}: local_steps={recipe.local_steps} lets every rank train a whole "
            f"model on its own, and stage={recipe.stage} shards the model; use stage=0, or leave "
            "local_steps at 1"
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


def _check_slices(recipe: Recipe) -> None:
    """Raise if a format needs more of a parameter than one rank's slice of it."""
    rules = {
        "weights": recipe.weight_rule,
        "grads": recipe.grad_rule if recipe.stage else None,
        "grads_within": recipe.grad_rule_within,
    }
    for field, rule in rules.items():
        for fmt in rule.formats if rule is not None else ():
            if fmt.family == "lowrank":
                raise ConfigError(
                    f"recipe {recipe.name}: {field}={fmt} needs whole matrices, and what travels "
                    "here are slices of them; use stage=0, or another format, for example "
                    "int4/128"
                )


def _check_losses(recipe: Recipe) -> None:
    """Raise if a field makes up for losses and there are none: fp32 is summed and sent as it is."""
    rules = (recipe.grad_rule, recipe.grad_rule_within)
    formats = {str(fmt) for rule in rules if rule is not None for fmt in rule.formats}
    for field in ("feedback", "warmup_steps"):
        value = getattr(recipe, field)
        if value and formats == {"fp32"}:
            raise ConfigError(
                f"recipe {recipe.name}: {field}={value} would have no effect, for grads=fp32 loses "
                f"nothing; leave {field} out, or choose a narrower format, for example "
                "grads=int4/128"
            )


def _check_adaptive(recipe: Recipe) -> None:
    """Raise where gradients are not observed at every step."""
    if recipe.adapts and recipe.local_steps > 1:
        raise ConfigError(
            f"recipe {recipe.name}: adaptive_bits and adaptive_error cannot be combined with "
            f"local_steps={recipe.local_steps}; leave local_steps at 1, or bits as they are"
        )


def _check_staleness(recipe: Recipe) -> None:
    """Raise if a reduction could not be hidden behind the next step."""
    if recipe.staleness and recipe.local_steps > 1:
        raise ConfigError(
            f"recipe {recipe.name}: staleness={recipe.staleness}: local_steps={recipe.local_steps} "
            "reduces nothing at most steps; leave one out"
        )
