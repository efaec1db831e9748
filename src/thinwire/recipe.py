"""A recipe: what travels in which format, and what stays where. Frozen data, no torch.

A recipe is the one argument that decides how a model is trained over the wire. It is validated
when it is made, so a recipe that exists is free of contradictions; whether this version can carry
it out is asked by :func:`thinwire.shard`, which refuses rather than ignore a field.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from thinwire.errors import ConfigError
from thinwire.formats import WireFormat, parse_format
from thinwire.rules import FormatRule, matches, parse_exceptions

__all__ = ["Recipe"]

STAGES = (0, 1, 2, 3)
COMPUTE_DTYPES = ("fp32", "bf16")
CHOICES: dict[str, tuple[str | None, ...]] = {
    "accumulate": ("sync", "keep", "within"),
    "offload": ("none", "states", "all", "disk"),
    "activations": ("keep", "recompute", "partition", "offload"),
    "compute": COMPUTE_DTYPES,
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
    ("adaptive_every", "adaptive_bits", "adaptive_bits=4.5"),
)
MAX_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a model is sharded and what its traffic looks like.

    Formats are written in the grammar of :func:`thinwire.parse_format`.

    Attributes:
        stage: ZeRO stage: 0 replicates all (DDP), 1 shards optimizer states, 2 gradients too,
            3 parameters too (arXiv 1910.02054, section 5).
        weights: format of the parameters on the wire (stages 2 and 3).
        grads: format of the gradients on the wire, across hosts if ``grads_within`` is given.
        grads_within: format of the first hop, within the host; ``None``: one hop only.
        weights_for: formats of single parameters instead of ``weights``: pairs of a shell pattern
            on the parameter's name, matched in any case, and a format; the first match counts.
        grads_for: the same instead of ``grads``, and of ``grads_within``.
        replica: a copy of the weights that serves gathers without the network. ``None``: none.
            ``"host"``: what forward gathered is kept for backward, split over the ranks of a host
            (hpZ, arXiv 2306.10209, section 3.2). ``"host/FORMAT"`` and ``"rank/FORMAT"``: a copy in
            that format stays for good, split over the ranks of a host or whole on every rank, and
            ``weights`` is the format of the deltas that keep it up to date.
        hybrid: shard within the host and replicate across hosts (stages 2 and 3). Gradients are
            reduced within the host in ``grads_within``, or as they are without it, and averaged
            across hosts in ``grads``.
        feedback: add what the gradient's codec lost to the next gradient (error feedback).
        residual: format in which residuals are kept between steps: ``"fp32"``, ``"bf16"`` or 8-bit
            integers in blocks, ``"int8/128"``.
        residual_average: weight of the old residual in the new one, a moving average of what was
            lost; 0 keeps what was lost in full, so that nothing is lost for good, 0.8 is the
            choice of LoCo (arXiv 2407.04480).
        residual_reset: residuals return to zero after so many steps; 0: never.
        residual_undo: keep what residuals were before a step, so that a step which all ranks skip
            can be taken back; costs as much memory again. Not kept with ``staleness=1``.
        warmup_steps: first optimizer steps in which gradients travel uncompressed.
        staleness: steps by which a reduced gradient may be late: 0, or 1 to hide the reduction
            behind the next step.
        exact: parameters that travel uncompressed, whatever other fields say: shell patterns on the
            parameter's name, matched in any case, or ``"1d"`` for every parameter of at most one
            dimension.
        min_numel: parameters with fewer elements travel uncompressed too.
        accumulate: what a micro-batch that is not the last does: ``"sync"`` reduces at once,
            ``"keep"`` keeps the unsharded sum, ``"within"`` reduces within the host only. Stage 1
            is ``"keep"``: reduced at once and kept as shares, gradients are those of stage 2.
        local_steps: optimizer steps between two exchanges; 1 exchanges at every step.
        optimizer_states: format in which the optimizer keeps its states.
        offload: what lives on the host: ``"none"``, ``"states"``, ``"all"`` or ``"disk"``.
        activations: ``"keep"``, ``"recompute"``, ``"partition"`` or ``"offload"``.
        qat: format that forward sees the weights through (quantization-aware training).
        compute: dtype of forward and backward, ``"bf16"`` or ``"fp32"``; shards stay in fp32.
        adaptive_bits: mean bits per element, scales included, that gradients in the format of
            ``grads`` may take; each parameter's own number of bits is chosen from what it loses.
        adaptive_every: optimizer steps from one such choice to the next.
        seed: of every random number a codec draws.
        strict: refuse what cannot be in effect, instead of warning.
        name: how the recipe calls itself in tables. Not part of its identity.

    Raises:
        ConfigError: a field is out of range, a format does not parse, or two fields contradict.
    """

    stage: int = 3
    weights: str = "bf16"
    grads: str = "fp32"
    grads_within: str | None = None
    weights_for: tuple[tuple[str, str], ...] = ()
    grads_for: tuple[tuple[str, str], ...] = ()
    replica: str | None = None
    hybrid: bool = False
    feedback: bool = False
    residual: str = "fp32"
    residual_average: float = 0.0
    residual_reset: int = 0
    residual_undo: bool = True
    warmup_steps: int = 0
    staleness: int = 0
    exact: tuple[str, ...] = ("*norm*", "*bias", "1d")
    min_numel: int = 1024
    accumulate: str = "sync"
    local_steps: int = 1
    optimizer_states: str = "fp32"
    offload: str = "none"
    activations: str = "keep"
    qat: str | None = None
    compute: str = "bf16"
    adaptive_bits: float | None = None
    adaptive_every: int = 100
    seed: int = 0
    strict: bool = True
    name: str = dataclasses.field(default="custom", compare=False)

    def __post_init__(self) -> None:
        _check_types(self)
        _check_ranges(self)
        for field in FORMAT_FIELDS:
            text = getattr(self, field)
            if text is not None:
                try:
                    parse_format(text)
                except ConfigError as error:
                    raise ConfigError(f"recipe field {field}: {error}") from error
        for field in RULE_FIELDS:
            try:
                parse_exceptions(getattr(self, field))
            except ConfigError as error:
                raise ConfigError(f"recipe field {field}: {error}") from error
        _check_contradictions(self)

    @property
    def weight_format(self) -> WireFormat:
        """The parsed format of ``weights``."""
        return parse_format(self.weights)

    @property
    def grad_format(self) -> WireFormat:
        """The parsed format of ``grads``."""
        return parse_format(self.grads)

    @property
    def weight_rule(self) -> FormatRule:
        """The format of every parameter on the wire, by name."""
        return FormatRule(self.weight_format, parse_exceptions(self.weights_for))

    @property
    def grad_rule(self) -> FormatRule:
        """The format of every gradient on the wire, by name; across hosts if there are two hops."""
        return FormatRule(self.grad_format, parse_exceptions(self.grads_for))

    @property
    def grad_rule_within(self) -> FormatRule | None:
        """The same for the first hop, within the host; ``None``: one hop only."""
        if self.grads_within is None:
            return None
        return FormatRule(parse_format(self.grads_within), parse_exceptions(self.grads_for))

    @property
    def resident_format(self) -> WireFormat | None:
        """The format of a replica that stays from step to step, or ``None``."""
        _, slash, fmt = (self.replica or "").partition("/")
        return parse_format(fmt) if slash else None

    @property
    def is_uncompressed(self) -> bool:
        """Whether PyTorch's own collectives carry this recipe: nothing is narrower than compute."""
        if self.local_steps != 1 or self.feedback or self.resident_format is not None:
            return False
        if self.weights_for or self.grads_for or self.grads_within or self.staleness:
            return False
        if self.stage == 0:
            return self.grads == "fp32"  # DDP reduces in the dtype of the parameters
        return self.weights == self.compute and self.grads in ("fp32", self.compute)

    def travels_exactly(self, parameter: str, shape: Sequence[int]) -> bool:
        """Whether a parameter is sent uncompressed.

        Args:
            parameter: its full name in the model, for example ``"blocks.0.norm.weight"``.
            shape: its global shape.
        """
        if math.prod(shape) < self.min_numel:
            return True
        return any(
            len(shape) <= 1 if pattern == "1d" else matches(pattern, parameter)
            for pattern in self.exact
        )


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
        "weights": (str,),
        "grads": (str,),
        "optimizer_states": (str,),
        "residual": (str,),
        "grads_within": (str, type(None)),
        "replica": (str, type(None)),
        "qat": (str, type(None)),
        "name": (str,),
    }
    for field, types in expected.items():
        value = getattr(recipe, field)
        # bool is an int to Python, but `stage=True` is a mistake
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            wanted = " or ".join(kind.__name__ for kind in types)
            raise ConfigError(f"recipe field {field}: {value!r} is not of type {wanted}")
    if not all(isinstance(pattern, str) for pattern in recipe.exact):
        raise ConfigError(f"recipe field exact: {recipe.exact!r} must hold patterns as text")
    for field in RULE_FIELDS:
        if not all(_is_text_pair(pair) for pair in getattr(recipe, field)):
            raise ConfigError(
                f"recipe field {field}: {getattr(recipe, field)!r} must hold pairs of a pattern "
                "and a format, for example (('*embed*', 'int8/128'),)"
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
    }
    for field, least in least_of.items():
        value = getattr(recipe, field)
        if value < least:
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
    for field, choices in CHOICES.items():
        value = getattr(recipe, field)
        if value not in choices:
            words = ", ".join("none" if word is None else word for word in choices)
            raise ConfigError(f"recipe field {field}: {value!r} is not one of {words}")


def _check_replica(recipe: Recipe) -> None:
    """Raise if ``replica`` is misspelled, or serves a gather that the stage does not have."""
    if recipe.replica is None:
        return
    place, slash, fmt = recipe.replica.partition("/")
    if place not in ("host", "rank") or (place == "rank" and not slash):
        raise ConfigError(
            f"recipe field replica: {recipe.replica!r} is not one of none, host, host/FORMAT, "
            "rank/FORMAT; for example rank/bf16"
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
                f"recipe fields {field} and {owner}: {field}={value} has no effect without "
                f"{example}; add that, or leave {field} out"
            )
    residual = parse_format(recipe.residual)
    is_plain_int8 = (residual.family, residual.bits) == ("int", 8) and not residual.options
    if str(residual) not in ("fp32", "bf16") and not is_plain_int8:
        raise ConfigError(
            f"recipe field residual: {recipe.residual!r} is not one of fp32, bf16, int8/BLOCK; "
            "for example int8/128"
        )
    family = recipe.grad_format.family
    if recipe.adaptive_bits is not None and family not in ADAPTIVE_FAMILIES:
        raise ConfigError(
            f"recipe fields adaptive_bits and grads: the bits of grads={recipe.grads} cannot be "
            "chosen; use an int or log format, for example grads=int4/128"
        )


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


def _check_contradictions(recipe: Recipe) -> None:
    """Raise if two fields cannot both hold."""
    _check_replica(recipe)
    _check_dependent(recipe)
    _check_hybrid(recipe)
    if recipe.stage == 1 and recipe.accumulate != "keep":
        raise ConfigError(
            f"recipe fields stage and accumulate: stage 1 keeps gradients whole, and "
            f"accumulate={recipe.accumulate} would reduce them in every micro-batch; use "
            "accumulate=keep, or stage=2"
        )
    resident = recipe.resident_format is not None
    widest = "fp32" in {str(fmt) for fmt in recipe.weight_rule.formats}
    if widest and recipe.compute == "bf16" and recipe.stage and not resident:
        raise ConfigError(
            "recipe fields weights and compute: weights=fp32 would send what compute=bf16 rounds "
            "away; use weights=bf16, or compute=fp32"
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
    if recipe.grads_within is not None and recipe.stage == 0:
        raise ConfigError(
            "recipe fields grads_within and stage: two hops need sharded gradients; "
            "use stage=2 or stage=3, or leave grads_within out"
        )
