"""Builds a layer the way a module is written: one line per submodule.

Each line adds the submodule's parameters, its arithmetic and what it keeps for backward. What is
kept follows PyTorch's autograd, each tensor counted once: a linear keeps its input, a norm its
input, attention its query, key and value; what attention gives is kept by the projection after it.
With dropout and unfused attention the sum over a GPT layer is s*b*h*(34 + 5*a*s/h) bytes in 16
bits (arXiv 2205.05198, equation 1).
"""

from __future__ import annotations

from dataclasses import dataclass

from thinwire.planner.operation import Operation
from thinwire.planner.workload import Layer, Parameter

__all__ = ["Attention", "LayerBuilder"]

STATISTICS_BYTES = 8.0  # a norm keeps mean and 1/deviation in fp32
LOG_SUM_BYTES = 4.0  # fused attention keeps one fp32 log-sum-exp per head
MASK_BYTES = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """The shape of an attention, and how it is run.

    Attributes:
        heads: query heads.
        kv_heads: key and value heads; fewer than ``heads`` for grouped-query attention.
        width: elements of one head.
        context: tokens that each token attends to at most.
        causal: whether a token attends to earlier ones only.
        fused: one kernel that never writes the square of scores (FlashAttention), or plain.
        dropout: whether attention and residuals are dropped out.
    """

    heads: int
    kv_heads: int
    width: int
    context: int
    causal: bool = True
    fused: bool = True
    dropout: bool = False

    @property
    def query_width(self) -> int:
        """Elements per token of all query heads."""
        return self.heads * self.width

    @property
    def kv_width(self) -> int:
        """Elements per token of all key heads, or of all value heads."""
        return self.kv_heads * self.width


class LayerBuilder:
    """Collects the parameters and operations of one layer.

    Args:
        hidden: elements per token that enter and leave the layer.
        dropout: whether residuals are dropped out.
    """

    def __init__(self, hidden: int, *, dropout: bool = False) -> None:
        self.hidden = hidden
        self.dropout = dropout
        self._parameters: list[Parameter] = []
        self._operations: list[Operation] = []
        self._reductions = 0

    def parameter(self, name: str, *shape: int, split: int | None = None) -> None:
        """A parameter that no line below covers."""
        self._parameters.append(Parameter(name=name, shape=shape, split=split))

    def operation(self, operation: Operation) -> None:
        """An operation that no line below covers."""
        self._operations.append(operation)

    def norm(
        self, name: str, width: int | None = None, *, bias: bool, computed: bool = True
    ) -> None:
        """A LayerNorm, or an RMSNorm without ``bias``; ``computed=False``: its parameters only."""
        width = self.hidden if width is None else width
        self.parameter(f"{name}.weight", width)
        if bias:
            self.parameter(f"{name}.bias", width)
        if computed:
            self.operation(
                Operation(name=name, moved=2 * width, saved=width, saved_bytes=STATISTICS_BYTES)
            )

    def column(
        self,
        name: str,
        inputs: int,
        outputs: int,
        *,
        bias: bool,
        keeps_input: bool = True,
        transposed: bool = False,
    ) -> None:
        """A linear whose outputs tensor parallelism divides.

        Args:
            name: of the module.
            inputs: elements per token that enter.
            outputs: elements per token that leave.
            bias: whether it has one.
            keeps_input: whether it is the first to keep its input for backward.
            transposed: whether the weight is stored as ``[inputs, outputs]``, as GPT-2 does.
        """
        shape = (inputs, outputs) if transposed else (outputs, inputs)
        self.parameter(f"{name}.weight", *shape, split=1 if transposed else 0)
        if bias:
            self.parameter(f"{name}.bias", outputs, split=0)
        # its input is whole on every tensor-parallel rank, its arithmetic is divided
        self.operation(Operation(name=name, flops=2.0 * inputs * outputs, split=True))
        if keeps_input:
            self.operation(Operation(name=f"{name} input", saved=inputs, kernels=0))

    def row(
        self, name: str, inputs: int, outputs: int, *, bias: bool, transposed: bool = False
    ) -> None:
        """A linear whose inputs tensor parallelism divides; an all-reduce follows it.

        Args:
            name: of the module.
            inputs: elements per token that enter; kept for backward.
            outputs: elements per token that leave.
            bias: whether it has one.
            transposed: whether the weight is stored as ``[inputs, outputs]``, as GPT-2 does.
        """
        shape = (inputs, outputs) if transposed else (outputs, inputs)
        self.parameter(f"{name}.weight", *shape, split=0 if transposed else 1)
        if bias:
            self.parameter(f"{name}.bias", outputs)
        self.operation(Operation(name=name, flops=2.0 * inputs * outputs, saved=inputs, split=True))
        self._reductions += 1

    def attention(self, shape: Attention, *, keys_kept_elsewhere: bool = False) -> None:
        """Scores, softmax and weighted sum. Keeps query, key and value."""
        square = float(shape.heads * shape.context)
        flops = 4.0 * shape.context * shape.query_width
        kept = float(shape.query_width)
        if not keys_kept_elsewhere:
            kept += 2 * shape.kv_width
        self.operation(Operation(name="query, key, value", saved=kept, kernels=0, split=True))
        if shape.fused:
            self.operation(
                Operation(
                    name="fused attention",
                    flops=flops,
                    executed=0.5 if shape.causal else 1.0,
                    moved=2 * shape.query_width + 2 * shape.kv_width,
                    saved_bytes=LOG_SUM_BYTES * shape.heads,
                    split=True,
                )
            )
            return
        # scores written, softmax read and written, weights read; dropout reads, writes, masks
        dropped = 1 if shape.dropout else 0
        self.operation(
            Operation(
                name="attention",
                flops=flops,
                moved=(4 + 2 * dropped) * square,
                moved_bytes=MASK_BYTES * dropped * square,
                saved=(1 + dropped) * square,
                saved_bytes=MASK_BYTES * dropped * square,
                kernels=3 + dropped,
                split=True,
                core=True,
            )
        )

    def head_norms(self, prefix: str, shape: Attention) -> None:
        """RMSNorms over each head of the queries and of the keys, with shared weights."""
        for part, width in (("q", shape.query_width), ("k", shape.kv_width)):
            self.parameter(f"{prefix}.{part}_norm.weight", shape.width)
            self.operation(Operation(name=f"{part}_norm", moved=2 * width, saved=width, split=True))

    def rotary(self, shape: Attention) -> None:
        """Queries and keys rotated by their position."""
        width = shape.query_width + shape.kv_width
        self.operation(Operation(name="rotary", moved=2 * width, kernels=2, split=True))

    def experts(self, prefix: str, width: int, *, experts: int, chosen: int) -> None:
        """A mixture of gated MLPs, each token through ``chosen`` of ``experts``.

        The experts' weights are two parameters for all of them, as transformers stores them since
        version 5.
        """
        share = chosen / experts
        self.parameter(f"{prefix}.gate.weight", experts, self.hidden)
        self.operation(Operation(name="router", flops=2.0 * self.hidden * experts, saved=experts))
        for name, shape, split in (
            ("gate_up_proj", (experts, 2 * width, self.hidden), 1),
            ("down_proj", (experts, self.hidden, width), 2),
        ):
            self._parameters.append(
                Parameter(name=f"{prefix}.experts.{name}", shape=shape, split=split, share=share)
            )
        self.operation(
            Operation(
                name="experts",
                flops=6.0 * chosen * self.hidden * width,
                # tokens gathered by expert and scattered back, the gate between
                moved=chosen * (4 * self.hidden + 5 * width),
                saved=chosen * (self.hidden + 4 * width),
                kernels=2 * experts,
                split=True,
            )
        )
        self._reductions += 1

    def activation(self, width: int) -> None:
        """A pointwise function that keeps its input, such as GELU."""
        self.operation(Operation(name="activation", moved=2 * width, saved=width, split=True))

    def gate(self, width: int) -> None:
        """``activation(gate) * up``: keeps the gate, what it becomes, and up."""
        self.operation(
            Operation(name="gate", moved=5 * width, saved=3 * width, kernels=2, split=True)
        )

    def residual(self) -> None:
        """The addition to the layer's input, after dropout if there is any."""
        dropped = 1 if self.dropout else 0
        self.operation(
            Operation(
                name="residual",
                moved=3 * self.hidden,
                moved_bytes=MASK_BYTES * dropped * self.hidden,
                saved_bytes=MASK_BYTES * dropped * self.hidden,
            )
        )

    def build(self, name: str, *, count: int = 1, start: int = 0) -> Layer:
        """The layer, ``count`` times.

        Args:
            name: the module's name, with ``{}`` where its index goes.
            count: how many equal ones follow each other.
            start: index of the first.
        """
        return Layer(
            name=name,
            start=start,
            count=count,
            parameters=tuple(self._parameters),
            operations=tuple(self._operations),
            boundary=self.hidden,
            reductions=self._reductions,
        )

    @property
    def operations(self) -> tuple[Operation, ...]:
        """What was added so far."""
        return tuple(self._operations)
