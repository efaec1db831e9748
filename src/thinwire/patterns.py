"""Whether a recipe fits the parameters of a model: a misspelled pattern must not pass.

Patterns decide by name, and what a model calls its parameters is known only when there is one. A
pattern that decides nothing means that a parameter travels in another format than was asked for.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence

from thinwire.errors import ConfigError, FormatError
from thinwire.quoting import quoted, shortened
from thinwire.recipe import USUALLY_EXACT, Recipe
from thinwire.rules import matches
from thinwire.validity import RULE_FIELDS

__all__ = ["check_patterns", "check_shapes"]

_NAMES_SHOWN = 3
LONGEST_NAME = 120


def check_patterns(recipe: Recipe, shapes: Mapping[str, Sequence[int]]) -> None:
    """Refuse patterns of ``weights_for``, ``grads_for`` and ``exact`` that decide nothing.

    Those that ``exact`` has by default are for models that have norms and biases.

    A recipe that is not strict warns instead.

    Args:
        recipe: whose patterns are meant.
        shapes: the global shape of every parameter, by its full name in the model.

    Raises:
        ConfigError: a pattern matches no parameter, or only such as an earlier pattern or ``exact``
            and ``min_numel`` have decided already.
    """
    idle = [("exact", pattern, reason) for pattern, reason in _idle_exact(recipe, shapes)]
    for field in RULE_FIELDS:
        patterns = [pattern for pattern, _ in getattr(recipe, field)]
        idle += [(field, pattern, reason) for pattern, reason in _idle(recipe, patterns, shapes)]
    for field, pattern, reason in idle:
        message = f"{_label(recipe)}: pattern {quoted(pattern)} of {field} {reason}"
        if recipe.strict:
            raise ConfigError(message + ", or accept it with strict=false")
        warnings.warn(message, stacklevel=4)


def check_shapes(recipe: Recipe, shapes: Mapping[str, Sequence[int]]) -> None:
    """Refuse ``lowrank`` of a given shape for parameters of another one.

    Args:
        recipe: whose formats are meant.
        shapes: the global shape of every parameter, by its full name in the model.

    Raises:
        FormatError: names the first such parameter.
    """
    rule = recipe.grad_rule
    for name, shape in shapes.items():
        if recipe.travels_exactly(name, shape):
            continue
        try:
            rule.format_of(name).factors_of(shape)
        except FormatError as error:
            raise FormatError(f"{_label(recipe)}: parameter {name}: {error}") from error


def _idle_exact(recipe: Recipe, shapes: Mapping[str, Sequence[int]]) -> Iterator[tuple[str, str]]:
    """The patterns of ``exact`` that match nothing, and so."""
    for pattern in recipe.exact:
        if pattern in USUALLY_EXACT or any(matches(pattern, name) for name in shapes):
            continue
        yield pattern, _matches_nothing(shapes)


def _matches_nothing(shapes: Mapping[str, Sequence[int]]) -> str:
    return f"matches none of the model's parameters ({_some(shapes)}): correct it, or leave it out"


def _idle(
    recipe: Recipe, patterns: Sequence[str], shapes: Mapping[str, Sequence[int]]
) -> Iterator[tuple[str, str]]:
    """The patterns that decide nothing, and why."""
    undecided = dict(shapes)
    for pattern in patterns:
        matched = [name for name in shapes if matches(pattern, name)]
        left = [name for name in matched if name in undecided]
        for name in left:
            del undecided[name]
        if not matched:
            yield pattern, _matches_nothing(shapes)
        elif not left:
            yield (
                pattern,
                f"decides nothing, for earlier patterns match all that it does ({_some(matched)}): "
                "put it before them, or leave it out",
            )
        elif all(recipe.travels_exactly(name, shapes[name]) for name in left):
            yield (
                pattern,
                f"decides nothing, for exact and min_numel={recipe.min_numel} let all that it "
                f"matches travel uncompressed ({_some(left)}): change these, or leave it out",
            )


def _label(recipe: Recipe) -> str:
    """What a message calls a recipe, whose name may hold all of its fields."""
    return f"recipe {shortened(recipe.name, LONGEST_NAME)}"


def _some(names: Mapping[str, object] | Sequence[str]) -> str:
    """The first few names, and how many there are."""
    shown = ", ".join(itertools.islice(names, _NAMES_SHOWN))
    return shown if len(names) <= _NAMES_SHOWN else f"{shown} and {len(names) - _NAMES_SHOWN} more"
