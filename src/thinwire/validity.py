"""What makes a recipe free of contradictions: types, ranges, and fields that go together."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from thinwire.errors import ConfigError
from thinwire.formats import parse_format
from thinwire.quoting import quoted
from thinwire.rules import parse_exceptions, with_other_bits

if TYPE_CHECKING:
    from thinwire.recipe import Recipe

__all__ = ["COMPUTE_DTYPES", "RULE_FIELDS", "check_recipe"]

STAGES = (0, 1, 2, 3)
COMPUTE_DTYPES = ("fp32", "bf16")
CHOICES: dict[str, tuple[str | None, ...]] = {
    "accumulate": ("sync", "keep", "within"),
    "offload": ("none", "states", "all", "disk"),
    "activations": ("keep", "recompute", "partition", "offload"),
    "compute": COMPUTE_DTYPES,
}
# what users call the types that a field may have
TYPE_WORDS: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    tuple: "a list",
    type(None): "none",
}
FORMAT_FIELDS = ("weights", "grads", "grads_within", "optimizer_states", "qat", "residual")
RULE_FIELDS = ("weights_for", "grads_for")
# families whose number of bits is free: what adaptive bits choose among
ADAPTIVE_FAMILIES = ("int", "log")
# fields that only have a meaning beside another one, and what that one must be
DEPENDENT_FIELDS = (
    ("residual", "feedback", "feedback=true"),
    ("residual_average", "feedback", "feedback=true"),
    ("residual_reset", "feedback", "feedback=true"),
    ("residual_undo", "feedback", "feedback=true"),
    ("adaptive_every", "adapts", "adaptive_bits=4.5"),
)
MAX_SEED = 2**63 - 1


def check_recipe(recipe: Recipe) -> None:
    """Raise if a recipe cannot mean anything.

    Raises:
        ConfigError: a field is out of range, a format does not parse, or two fields contradict.
    """
    _check_types(recipe)
    _check_ranges(recipe)
    _check_formats(recipe)
    _check_contradictions(recipe)


def _check_formats(recipe: Recipe) -> None:
    """Raise if a format does not parse."""
    for field in (*FORMAT_FIELDS, *RULE_FIELDS):
        value = getattr(recipe, field)
        try:
            if field in RULE_FIELDS:
                parse_exceptions(value)
            elif value is not None:
                parse_format(value)
        except ConfigError as error:
            raise ConfigError(f"recipe field {field}: {error}") from error


def _check_types(recipe: Recipe) -> None:
    """Raise if a field has a type that its annotation does not allow."""
    expected: dict[str, tuple[type, ...]] = {
        "stage": (int,),
        "min_numel": (int,),
        "local_steps": (int,),
        "residual_reset": (int,),
        "warmup_steps": (int,),
        "staleness": (int,),
        "adaptive_every": (int,),
        "seed": (int,),
        "feedback": (bool,),
        "hybrid": (bool,),
        "residual_undo": (bool,),
        "strict": (bool,),
        "exact": (tuple,),
        "weights_for": (tuple,),
        "grads_for": (tuple,),
        "residual_average": (int, float),
        "adaptive_bits": (int, float, type(None)),
        "adaptive_error": (int, float, type(None)),
        "weights": (str,),
        "grads": (str,),
        "optimizer_states": (str,),
        "residual": (str,),
        "grads_within": (str, type(None)),
        "replica": (str, type(None)),
        "group_bytes": (int, type(None)),
        "qat": (str, type(None)),
        "name": (str,),
    }
    for field, types in expected.items():
        value = getattr(recipe, field)
        # bool is an int to Python, but `stage=True` is a mistake
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            wanted = " or ".join(TYPE_WORDS[kind] for kind in types)
            raise ConfigError(f"recipe field {field}: {quoted(value)} is not {wanted}")
    if not all(isinstance(pattern, str) for pattern in recipe.exact):
        raise ConfigError(f"recipe field exact: {quoted(recipe.exact)} must hold patterns as text")
    for field in RULE_FIELDS:
        if not all(_is_text_pair(pair) for pair in getattr(recipe, field)):
            raise ConfigError(
                f"recipe field {field}: {quoted(getattr(recipe, field))} must hold pairs of a "
                "pattern and a format, for example (('*embed*', 'int8/128'),)"
            )


def _is_text_pair(pair: object) -> bool:
    return isinstance(pair, tuple) and [type(part) for part in pair] == [str, str]


def _check_ranges(recipe: Recipe) -> None:
    """Raise if a number is out of range or a word is not one of the choices."""
    if recipe.stage not in STAGES:
        raise ConfigError(f"recipe field stage: {recipe.stage} is not one of 0, 1, 2, 3")
    least_of = {
        "min_numel": 0,
        "local_steps": 1,
        "residual_reset": 0,
        "warmup_steps": 0,
        "adaptive_every": 1,
        "seed": 0,
        "group_bytes": 0,
    }
    for field, least in least_of.items():
        value = getattr(recipe, field)
        if value is not None and value < least:
            raise ConfigError(f"recipe field {field}: {value} is below {least}")
    if recipe.seed > MAX_SEED:
        raise ConfigError(f"recipe field seed: {recipe.seed} does not fit in 63 bits")
    if recipe.staleness not in (0, 1):
        raise ConfigError(f"recipe field staleness: {recipe.staleness} is not one of 0, 1")
    if not 0 <= recipe.residual_average < 1:
        raise ConfigError(
            f"recipe field residual_average: {recipe.residual_average} is not from 0 to below 1"
        )
    if recipe.adaptive_bits is not None and not 1 <= recipe.adaptive_bits <= 32:
        raise ConfigError(
            f"recipe field adaptive_bits: {recipe.adaptive_bits} is not between 1 and 32"
        )
    if recipe.adaptive_error is not None and not 0 < recipe.adaptive_error < 1:
        raise ConfigError(
            f"recipe field adaptive_error: {recipe.adaptive_error} is not above 0 and below 1"
        )
    for field, choices in CHOICES.items():
        value = getattr(recipe, field)
        if value not in choices:
            words = ", ".join("none" if word is None else word for word in choices)
            raise ConfigError(f"recipe field {field}: {quoted(value)} is not one of {words}")


def _check_replica(recipe: Recipe) -> None:
    """Raise if ``replica`` is misspelled, or serves a gather that the stage does not have."""
    if recipe.replica is None:
        return
    place, slash, fmt = recipe.replica.partition("/")
    if place not in ("host", "rank") or (place == "rank" and not slash):
        raise ConfigError(
            f"recipe field replica: {quoted(recipe.replica)} is not one of none, host, "
            "host/FORMAT, rank/FORMAT; for example rank/bf16"
        )
    if slash:
        try:
            parse_format(fmt)
        except ConfigError as error:
            raise ConfigError(f"recipe field replica: {error}") from error
    if recipe.stage < (1 if slash else 3):
        served = "gathered weights" if slash else "the second gather of stage 3"
        raise ConfigError(
            f"recipe fields replica and stage: replica={recipe.replica} serves {served}, which "
            f"stage {recipe.stage} does not have; leave replica out"
        )


def _check_dependent(recipe: Recipe) -> None:
    """Raise if a field was changed that nothing would come of, for another one is left out."""
    defaults = {field.name: field.default for field in dataclasses.fields(recipe)}
    for field, owner, example in DEPENDENT_FIELDS:
        value = getattr(recipe, field)
        if value != defaults[field] and not getattr(recipe, owner):
            raise ConfigError(
                f"recipe fields {field} and {example}: {field}={value} has no effect without "
                f"{example}; add that, or leave {field} out"
            )
    if recipe.residual_reset == 1:
        raise ConfigError(
            "recipe fields residual_reset and feedback: residual_reset=1 forgets every residual "
            "before it is used, so feedback would have no effect; use 2 or more, or leave both out"
        )
    if not parse_format(recipe.residual).keeps_residuals:
        raise ConfigError(
            f"recipe field residual: {quoted(recipe.residual)} is not one of fp32, bf16, "
            "int8/BLOCK; for example int8/128"
        )
    _check_adaptive(recipe)


def _check_hybrid(recipe: Recipe) -> None:
    """Raise if the stage leaves nothing to shard, or a replica nothing to serve."""
    if not recipe.hybrid:
        return
    if recipe.stage < 2:
        raise ConfigError(
            f"recipe fields hybrid and stage: stage={recipe.stage} shards no gradients to "
            "replicate across hosts; use stage=2 or stage=3, or leave hybrid out"
        )
    if recipe.replica is not None:
        raise ConfigError(
            f"recipe fields hybrid and replica: hybrid gathers within the host anyway, so "
            f"replica={recipe.replica} would spare no host the network; leave one of them out"
        )


def _check_adaptive(recipe: Recipe) -> None:
    """Raise if bits cannot be chosen, or are to be chosen in two ways."""
    if not recipe.adapts:
        return
    if recipe.grad_format.family not in ADAPTIVE_FAMILIES:
        raise ConfigError(
            f"recipe fields adaptive_bits, adaptive_error and grads: the bits of "
            f"grads={recipe.grads} cannot be chosen; use an int or log format, for example "
            "grads=int4/128"
        )
    if recipe.adaptive_bits is not None and recipe.adaptive_error is not None:
        raise ConfigError(
            "recipe fields adaptive_bits and adaptive_error: bits are chosen within a number of "
            "bytes or within an error; leave one of them out"
        )
    widest = with_other_bits(recipe.grad_format)[-1]
    if recipe.adaptive_bits is not None and recipe.adaptive_bits > widest.block_bits:
        raise ConfigError(
            f"recipe field adaptive_bits: {recipe.adaptive_bits} is more than {widest} takes, the "
            f"widest format to choose from; use at most {widest.block_bits:g}"
        )


def _check_weights(recipe: Recipe) -> None:
    """Raise if weights would lose what they must not, or a format of theirs not be in effect."""
    resident = recipe.resident_format is not None
    widest = "fp32" in {str(fmt) for fmt in recipe.weight_rule.formats}
    if widest and recipe.compute == "bf16" and recipe.stage and not resident:
        raise ConfigError(
            "recipe fields weights and compute: weights=fp32 would send what compute=bf16 rounds "
            "away; use weights=bf16, or compute=fp32"
        )
    sparse = [fmt for fmt in recipe.weight_rule.formats if fmt.family == "topk"]
    if sparse and recipe.stage and not resident:
        raise ConfigError(
            f"recipe fields weights and replica: weights in {sparse[0]} would be zero but for the "
            "largest in every pass; add replica=rank/bf16, with which changes of weights are "
            "sent, or use weights=int8/128"
        )
    if recipe.stage == 0 and not parse_format(recipe.weights).is_cast:
        raise ConfigError(
            "recipe fields weights and stage: stage 0 sends no weights, so "
            f"weights={recipe.weights} would not be in effect; leave it out, or use stage=3"
        )
    if recipe.stage == 0 and recipe.weights_for:
        raise ConfigError(
            "recipe fields weights_for and stage: stage 0 sends no weights, so weights_for would "
            "not be in effect; leave it out, or use stage=3"
        )


def _check_contradictions(recipe: Recipe) -> None:
    """Raise if two fields cannot both hold."""
    _check_replica(recipe)
    _check_dependent(recipe)
    _check_hybrid(recipe)
    _check_weights(recipe)
    if recipe.stage == 1 and recipe.accumulate != "keep":
        raise ConfigError(
            f"recipe fields stage and accumulate: stage 1 keeps gradients whole, and "
            f"accumulate={recipe.accumulate} would reduce them in every micro-batch; use "
            "accumulate=keep, or stage=2"
        )
    if recipe.group_bytes is not None and recipe.stage == 0:
        raise ConfigError(
            "recipe fields group_bytes and stage: stage 0 is DDP, whose buckets group parameters; "
            "leave group_bytes out, or use stage=3"
        )
    if recipe.accumulate == "within" and recipe.stage == 0:
        raise ConfigError(
            "recipe fields accumulate and stage: accumulate=within holds shares of gradients, and "
            "under stage=0 they are whole everywhere; use accumulate=keep, which sends as little, "
            "or stage=2"
        )
    if recipe.grads_within is not None and recipe.stage == 0:
        raise ConfigError(
            "recipe fields grads_within and stage: two hops need sharded gradients; "
            "use stage=2 or stage=3, or leave grads_within out"
        )
