"""Bytes of activations: what forward keeps for backward, layer by layer.

keep        every saved tensor stays on the device
recompute   only each layer's input stays; one layer at a time is saved in full
partition   as recompute, the inputs divided over tensor-parallel ranks (ZeRO-R,
            arXiv 1910.02054, section 6.1)
offload     as recompute, the inputs on the host; two at a time on the device
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from thinwire.planner.group import Parallelism
from thinwire.planner.operation import Operation
from thinwire.planner.workload import Layer

__all__ = [
    "RECOMPUTED_MODES",
    "ActivationPlan",
    "LayerActivations",
    "layer_activations",
    "saved_bytes",
]

RECOMPUTED_MODES = ("recompute", "partition", "offload")
IN_FLIGHT = 2  # inputs on their way to or from the host while the next layer works


@dataclass(frozen=True, slots=True)
class LayerActivations:
    """Bytes of one layer's activations for one micro-batch.

    Attributes:
        kept: that stay on the device from forward to backward.
        hosted: that stay on the host.
        working: on top of ``kept`` while this layer's backward runs: what is saved again, the
            gradients on their way through it.
        passing: on top of ``kept`` while its forward runs.
    """

    kept: float
    hosted: float
    working: float
    passing: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationPlan:
    """What decides the bytes.

    Attributes:
        mode: the recipe's ``activations``, or ``"selective"``: only the core of attention is
            recomputed (arXiv 2205.05198, section 5).
        tokens: of one micro-batch.
        element_bytes: of the compute dtype.
        parallelism: tensor parallelism divides some of it, sequence parallelism the rest.
    """

    mode: str
    tokens: float
    element_bytes: int
    parallelism: Parallelism

    @property
    def keeps_inputs_only(self) -> bool:
        """Whether a layer is saved again in backward."""
        return self.mode in RECOMPUTED_MODES


def saved_bytes(operations: Iterable[Operation], plan: ActivationPlan) -> float:
    """Bytes that these operations keep for backward."""
    return plan.tokens * sum(
        operation.saved_in_bytes(plan.element_bytes) / _parts(operation, plan.parallelism)
        for operation in operations
        if not (plan.mode == "selective" and operation.core)
    )


def layer_activations(layer: Layer, plan: ActivationPlan) -> LayerActivations:
    """Bytes of one layer of a run."""
    parallelism = plan.parallelism
    whole_input = plan.tokens * plan.element_bytes * layer.boundary
    if parallelism.sequence:
        whole_input /= parallelism.tp
    saved = saved_bytes(layer.operations, plan)
    # the widest tensor's gradient beside the one it is made from, and the gradient of the input
    widest = max((_saved_by(operation, plan) for operation in layer.operations), default=0.0)
    gradients = widest + whole_input
    if not plan.keeps_inputs_only:
        return LayerActivations(saved, 0.0, gradients, whole_input)
    kept = whole_input / parallelism.tp if plan.mode == "partition" else whole_input
    again = saved - whole_input
    if plan.mode == "offload":
        buffers = IN_FLIGHT * whole_input
        return LayerActivations(0.0, whole_input, again + gradients + buffers, again + buffers)
    return LayerActivations(kept, 0.0, again + gradients, again)


def _saved_by(operation: Operation, plan: ActivationPlan) -> float:
    parts = _parts(operation, plan.parallelism)
    return plan.tokens * operation.saved_in_bytes(plan.element_bytes) / parts


def _parts(operation: Operation, parallelism: Parallelism) -> int:
    return parallelism.tp if operation.split or parallelism.sequence else 1
