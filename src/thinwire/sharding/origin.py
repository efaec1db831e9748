"""Under which recipe a state was made, as far as that decides what its tensors stand for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from thinwire.errors import StateError
from thinwire.recipe import Recipe

__all__ = ["ORIGIN", "check_origin", "origin_entry"]

ORIGIN = "shared/recipe"

# The fields on which it depends what is remembered under a name. Others, such as the bits that
# weights travel in, may change from run to run.
_FIELDS = {
    "adaptation": ("grads", "grads_for"),
    "factors": ("grads", "grads_for"),
    "late": ("stage", "hybrid"),
    "residuals": ("stage", "hybrid", "two hops", "grads", "grads_for", "exact", "min_numel"),
}


def origin_entry(recipe: Recipe) -> Tensor:
    """The fields that matter, as the bytes of a JSON text: uint8, 1-D."""
    return torch.tensor(list(json.dumps(_fields(recipe)).encode()), dtype=torch.uint8)


def check_origin(recipe: Recipe, state: Mapping[str, Tensor]) -> None:
    """Raise if a state was made under a recipe that remembers other things than ``recipe`` does.

    Raises:
        StateError: names the fields that differ; or the state does not say how it was made.
    """
    saved, present = _read(state), _fields(recipe)
    for kind in _kinds(state):
        differ = [field for field in _FIELDS.get(kind, ()) if saved.get(field) != present[field]]
        if differ:
            then = ", ".join(f"{field}={saved.get(field)}" for field in differ)
            now = ", ".join(f"{field}={present[field]}" for field in differ)
            raise StateError(
                f"the state's {kind} were made under {then}, and recipe {recipe.name} has {now}: "
                "load it into a model with the recipe that it was saved with, or leave the state "
                "out and train on without"
            )


def _fields(recipe: Recipe) -> dict[str, str]:
    return {
        "stage": "1 to 3" if recipe.stage else "0",  # which all deal out rows alike
        "hybrid": str(recipe.hybrid).lower(),
        "two hops": str(recipe.reduces_within).lower(),
        "grads": recipe.grads,
        "grads_for": ", ".join(f"{pattern}={fmt}" for pattern, fmt in recipe.grads_for),
        "exact": ", ".join(recipe.exact),
        "min_numel": str(recipe.min_numel),
    }


def _read(state: Mapping[str, Tensor]) -> dict[str, str]:
    entry = state.get(ORIGIN)
    text = b"" if entry is None or entry.dtype != torch.uint8 else bytes(entry.flatten().tolist())
    try:
        saved = json.loads(text)
    except ValueError:  # no JSON, or no UTF-8
        saved = None
    if not isinstance(saved, dict):
        raise StateError(
            "this is no compression state, for it does not say which recipe made it: pass what "
            "thinwire.compression_state returned"
        )
    return saved


def _kinds(state: Iterable[str]) -> list[str]:
    """What the state remembers, such as ``"residuals"``."""
    return sorted({entry.split("/")[1] for entry in state if "/" in entry})
