"""What a layer computes, as numbers: arithmetic, memory traffic, and what backward will need."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BACKWARD_FLOPS", "BACKWARD_MOVED", "Operation"]

# A matrix product has two gradients, each as large as the product itself.
BACKWARD_FLOPS = 2.0
# Where forward reads x and writes y, backward reads x and dy and writes dx: three for two.
BACKWARD_MOVED = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One step of a layer's forward, per token.

    Attributes:
        name: what it is, for people.
        flops: floating-point operations of matrix products, a multiply-add counting two. Attention
            counts its whole square, as the published formulas do.
        executed: share of ``flops`` that is really computed; 0.5 where a fused kernel skips the
            masked half of a causal square.
        moved: elements of the compute dtype that memory-bound kernels read and write.
        moved_bytes: bytes moved on top whose width does not follow the compute dtype.
        saved: elements of the compute dtype kept for backward.
        saved_bytes: bytes kept for backward whose width does not follow the compute dtype: masks,
            statistics, indices.
        kernels: kernel launches.
        split: tensor parallelism divides it (arXiv 1909.08053, section 3); else only sequence
            parallelism does.
        core: between the query-key product and the weighted sum: what selective recompute drops
            and runs again (arXiv 2205.05198, section 5).
    """

    name: str
    flops: float = 0.0
    executed: float = 1.0
    moved: float = 0.0
    moved_bytes: float = 0.0
    saved: float = 0.0
    saved_bytes: float = 0.0
    kernels: int = 1
    split: bool = False
    core: bool = False

    def saved_in_bytes(self, element_bytes: float) -> float:
        """Bytes kept for backward per token, for a compute dtype of ``element_bytes`` bytes."""
        return self.saved * element_bytes + self.saved_bytes

    def moved_in_bytes(self, element_bytes: float) -> float:
        """Bytes moved by forward per token, for a compute dtype of ``element_bytes`` bytes."""
        return self.moved * element_bytes + self.moved_bytes
