"""What a comparison tells while it runs, to whoever shows it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Protocol

from thinwire.train.comparison import Link, Run

__all__ = ["NoProgress", "Progress", "StepEvent", "parse_event"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvent:
    """One step of the run that is going on.

    Attributes:
        step: from 0.
        loss: mean over ranks, nats per token; ``None`` if not finite.
        step_s: its time.
    """

    step: int
    loss: float | None
    step_s: float

    def to_line(self) -> str:
        """The event as one line of JSON; :func:`parse_event` reads it."""
        return json.dumps({"step": self.step, "loss": self.loss, "step_s": self.step_s})


def parse_event(line: str) -> StepEvent | None:
    """The event that a line of a rank's output holds; ``None`` if a library wrote the line."""
    try:
        content = json.loads(line)
        return StepEvent(**content)
    except (ValueError, TypeError):
        return None


class Progress(Protocol):
    """Is told what happens, in order."""

    def begin_setting(self, link: Link | None, notice: str | None) -> None:
        """A network stands; its link was measured."""

    def begin_run(self, recipe: str, steps: int) -> None:
        """The processes of a recipe start."""

    def step(self, event: StepEvent) -> None:
        """A step is done."""

    def end_run(self, run: Run) -> None:
        """All steps and the validation are done."""


class NoProgress:
    """Shows nothing."""

    def begin_setting(self, link: Link | None, notice: str | None) -> None:
        """See :class:`Progress`."""

    def begin_run(self, recipe: str, steps: int) -> None:
        """See :class:`Progress`."""

    def step(self, event: StepEvent) -> None:
        """See :class:`Progress`."""

    def end_run(self, run: Run) -> None:
        """See :class:`Progress`."""
