"""Counts that all ranks share, and the steps of a model's optimizer."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from thinwire.errors import StateError

__all__ = ["Counters", "watch_steps"]


class Counters:
    """Counts by name, from zero: of steps, and of what random numbers are keyed by."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._committed: dict[str, int] = {}

    def __getitem__(self, name: str) -> int:
        """How often a name was counted."""
        return self._counts.get(name, 0)

    def count(self, name: str) -> int:
        """Count a name once more, and return how often it was counted before."""
        before = self[name]
        self._counts[name] = before + 1
        return before

    def count_for_good(self, name: str) -> int:
        """Count what stays done if the step under way is not taken; otherwise as :meth:`count`."""
        before = self.count(name)
        self._committed[name] = before + 1
        return before

    def commit(self) -> None:
        """The step under way was taken: its counts stay."""
        self._committed = dict(self._counts)

    def undo(self) -> None:
        """The step under way is not taken: what it counted is counted again."""
        self._counts = dict(self._committed)

    def state(self) -> dict[str, Tensor]:
        """All counts, each an int64 scalar."""
        return {name: torch.tensor(count) for name, count in self._counts.items()}

    def check(self, state: Mapping[str, Tensor]) -> None:
        """Raise unless a state is one of counts.

        Raises:
            StateError: an entry is no whole number, or negative.
        """
        for name, count in state.items():
            if count.dim() or count.dtype != torch.int64 or count < 0:
                raise StateError(
                    f"{name!r} ({count.dtype}, shape {tuple(count.shape)}) is no count: pass what "
                    "thinwire.compression_state returned"
                )

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what :meth:`state` returned.

        Raises:
            StateError: see :meth:`check`.
        """
        self.check(state)
        self._counts = {name: int(count) for name, count in state.items()}
        self.commit()


_watched: weakref.WeakKeyDictionary[nn.Module, list[Callable[[], None]]] = (
    weakref.WeakKeyDictionary()
)


def watch_steps(model: nn.Module, when_stepped: Callable[[], None]) -> None:
    """Have every step of a model's optimizer reported, for as long as the model lives.

    The model's optimizer is the one that holds its first trained parameter, of those trained at the
    time. A step that is skipped, as a gradient scaler does, is none.

    Args:
        model: whose optimizer is watched.
        when_stepped: called after each step; must not keep the model alive.
    """
    _watch_optimizers()
    _watched.setdefault(model, []).append(when_stepped)


@functools.cache
def _watch_optimizers() -> None:
    """Register the one hook of the process, for good.

    Optimizers walk through the hooks as they are. One that went with its model would go when the
    collector finds that, perhaps in the middle of a step of another model, which then fails.
    """
    register_optimizer_step_post_hook(_after_step)


def _after_step(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for model, callbacks in list(_watched.items()):
        first = next((p for p in model.parameters() if p.requires_grad), None)
        if id(first) in held:
            for when_stepped in callbacks:
                when_stepped()
