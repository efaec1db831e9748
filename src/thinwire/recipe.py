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

from thinwire.formats import WireFormat, parse_format
from thinwire.grouping import DEFAULT_GROUP_BYTES
from thinwire.rules import FormatRule, matches, parse_exceptions
from thinwire.validity import check_recipe

__all__ = ["USUALLY_EXACT", "Recipe"]

USUALLY_EXACT = ("*norm*", "*bias", "1d")  # matching is in any case; see `Recipe.exact`


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a model is sharded and what its traffic looks like.

    Formats are written in the grammar of :func:`thinwire.parse_format`.

    Attributes:
        stage: ZeRO stage: 0 replicates all (DDP), 1 shards optimizer states, 2 gradients too,
            3 parameters too (arXiv 1910.02054, section 5).
        weights: format of the parameters on the wire (stages 1 to 3).
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
        group_bytes: neighbouring blocks of a model travel together as long as they have no more
            bytes than this in ``compute`` (stages 1 to 3); 0: every block by itself. ``None``: as
            ``grouped_bytes`` says.
        feedback: add what the gradient's codec lost to the next gradient (error feedback).
        residual: format in which residuals are kept between steps: ``"fp32"``, ``"bf16"`` or 8-bit
            integers in blocks, ``"int8/128"``.
        residual_average: weight of the old residual in the new one, a moving average of what was
            lost; 0 keeps what was lost in full, so that nothing is lost for good, 0.8 is the
            choice of LoCo (arXiv 2407.04480).
        residual_reset: residuals return to zero after so many steps, at least 2; 0: never.
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
            ``"keep"`` keeps the unsharded sum, ``"within"`` reduces within the host only, in
            ``grads_within`` or as gradients are, and has the sum cross hosts (stages 2, 3). Stage 1
            is ``"keep"``: reduced at once and kept as shares, gradients are those of stage 2.
        local_steps: optimizer steps between two exchanges; 1 exchanges at every step.
        optimizer_states: format in which the optimizer keeps its states.
        offload: what lives on the host: ``"none"``, ``"states"``, ``"all"`` or ``"disk"``.
        activations: ``"keep"``, ``"recompute"``, ``"partition"`` or ``"offload"``.
        qat: format that forward sees the weights through (quantization-aware training).
        compute: dtype of forward and backward, ``"bf16"`` or ``"fp32"``; shards stay in fp32.
        adaptive_bits: mean bits per element, scales included, that gradients in the format of
            ``grads`` may take; each parameter's own number of bits is chosen from what it loses.
        adaptive_error: instead, the relative error in the 2-norm that these gradients together may
            have in the fewest bytes.
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
    group_bytes: int | None = None
    feedback: bool = False
    residual: str = "fp32"
    residual_average: float = 0.0
    residual_reset: int = 0
    residual_undo: bool = True
    warmup_steps: int = 0
    staleness: int = 0
    exact: tuple[str, ...] = USUALLY_EXACT
    min_numel: int = 1024
    accumulate: str = "sync"
    local_steps: int = 1
    optimizer_states: str = "fp32"
    offload: str = "none"
    activations: str = "keep"
    qat: str | None = None
    compute: str = "bf16"
    adaptive_bits: float | None = None
    adaptive_error: float | None = None
    adaptive_every: int = 100
    seed: int = 0
    strict: bool = True
    name: str = dataclasses.field(default="custom", compare=False)

    def __post_init__(self) -> None:
        check_recipe(self)

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
    def adapts(self) -> bool:
        """Whether the bits of gradients are chosen from what gradients look like."""
        return self.adaptive_bits is not None or self.adaptive_error is not None

    @property
    def reduces_within(self) -> bool:
        """Whether gradients are reduced within the host first, and across hosts by themselves."""
        holds = self.accumulate == "within" and self.stage > 1
        return self.hybrid or self.grads_within is not None or holds

    @property
    def is_uncompressed(self) -> bool:
        """Whether PyTorch's own collectives carry this recipe: nothing is narrower than compute."""
        if self.local_steps != 1 or self.feedback or self.resident_format is not None:
            return False
        if self.weights_for or self.grads_for or self.grads_within or self.staleness:
            return False
        if self.reduces_within and not self.hybrid:
            return False
        if self.stage == 0:
            return self.grads == "fp32"  # DDP reduces in the dtype of the parameters
        return self.weights == self.compute and self.grads in ("fp32", self.compute)

    @property
    def grouped_bytes(self) -> int:
        """``group_bytes``, or what it is by default; 0: every block of a model is alone.

        Sums in rank order do not depend on groups. Those of PyTorch's own collectives do, in the
        last bit, and an uncompressed recipe is PyTorch's own to the bit.
        """
        if self.group_bytes is not None:
            return self.group_bytes
        return 0 if self.is_uncompressed or self.stage == 0 else DEFAULT_GROUP_BYTES

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
