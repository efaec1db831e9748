"""What early micro-batches leave within the host, held until the last one takes it across."""

from __future__ import annotations

from torch import Tensor

__all__ = ["HeldSum"]


class HeldSum:
    """What the micro-batches before the last one left of a unit's gradients, in one tensor.

    Memory, between the micro-batches of a step: under ``hybrid`` the own shard, in the dtype of the
    reduction; otherwise, in fp32, a shard for every host, which is the unit over the ranks per
    host.
    """

    def __init__(self) -> None:
        self._held: Tensor | None = None

    def take(self, reduced: Tensor) -> None:
        """Hold back what an early micro-batch left."""
        self._held = reduced.clone() if self._held is None else self._held.add_(reduced)

    def release(self) -> Tensor | None:
        """What is held, to be added to the last micro-batch's gradients; nothing is held then."""
        held, self._held = self._held, None
        return held

    def drop(self) -> None:
        """Forget what is held: its step is given up."""
        self._held = None
