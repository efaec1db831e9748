"""Gradients one reduction late: what a step sends is applied by the next one.

    compute   | forward 1 | backward 1 |  forward 2 | backward 2 |  forward 3 | ...
    wire                        | reduce 1 ............| reduce 2 ............|
    applied                  zeros ^         reduced 1 ^         reduced 2 ^

The reduction has the whole of the next step to travel, so a step takes as long as the longer of
compute and wire instead of both. Every gradient is applied once, the last one of a run never. Which
gradient is applied depends on counting alone, never on how fast the wire is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from thinwire.comm.sender import Ticket
from thinwire.errors import StateError

__all__ = ["LateGradients"]


@dataclass(frozen=True, slots=True)
class _Late:
    gradient: Tensor
    ticket: Ticket | None


class LateGradients:
    """Keeps every parameter's reduced gradient until its next reduction.

    They are kept by parameter, so that it does not matter how these are grouped. A parameter that
    is left out of a reduction among whose parameters it was before (frozen meanwhile) loses what
    was kept: it would be too old when it comes back.
    """

    def __init__(self) -> None:
        self._kept: dict[str, _Late] = {}

    def wait(self, names: Iterable[str]) -> None:
        """Return when the reduction before of some parameters is done; raise what it raised.

        To be called before the present one begins, whose residuals and factors that one renews.
        """
        for late in (self._kept[name] for name in names if name in self._kept):
            if late.ticket is not None:
                late.ticket.wait()

    def exchange(
        self, gradients: Mapping[str, Tensor], reduced: Mapping[str, Tensor], ticket: Ticket | None
    ) -> None:
        """Hand out the gradients of the reduction before, which is done, and keep the present ones.

        Args:
            gradients: by the parameters' names; overwritten, with zeros where nothing was kept.
            reduced: where the present reduction writes its results; the same names and sizes.
            ticket: the receipt of the present reduction; ``None``: it is done.

        Raises:
            StateError: a parameter has another size than when its gradient was kept.
        """
        for name, gradient in gradients.items():
            late = self._kept.pop(name, None)
            if late is None:
                gradient.zero_()
                continue
            if late.gradient.numel() != gradient.numel():
                raise StateError(
                    f"parameter {name} has {gradient.numel()} elements to reduce, but its late "
                    f"gradient has {late.gradient.numel()}: it was resized, or the number of ranks "
                    "changed; leave the state out to start anew"
                )
            gradient.view(-1).copy_(late.gradient.view(-1))
        for name, tensor in reduced.items():
            self._kept[name] = _Late(tensor, ticket)

    def drop(self, names: frozenset[str]) -> None:
        """Forget the gradients of parameters that are not reduced at present."""
        for name in names & self._kept.keys():
            del self._kept[name]

    def finish(self) -> None:
        """Return when all reductions under way are done; raise what one of them raised."""
        self.wait(self._kept)

    def state(self) -> dict[str, Tensor]:
        """What is kept, by parameter, once all reductions are done; the tensors themselves."""
        self.finish()
        return {name: late.gradient for name, late in self._kept.items()}

    def check(self, state: Mapping[str, Tensor]) -> None:
        """Take any state of tensors: sizes depend on how parameters are cut, see ``soundness``."""

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what :meth:`state` returned."""
        self._kept = {name: _Late(tensor.clone(), None) for name, tensor in state.items()}
