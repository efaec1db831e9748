"""What the sockets of one model share, and the rule for leaving work to the sending threads."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from thinwire.comm.ledger import Ledger
from thinwire.comm.sender import Job, Sender, Ticket, run_now
from thinwire.comm.topology import Topology
from thinwire.recipe import Recipe
from thinwire.sharding.units import Unit
from thinwire.wire.feedback import NO_FEEDBACK, Feedback, Residuals

__all__ = ["Compression", "in_backward"]


@dataclass(slots=True)
class Compression:
    """The parts that all sockets of one model share.

    Attributes:
        recipe: what travels in which format.
        topology: which ranks share a host.
        ledger: where sent bytes are recorded.
        sender: runs jobs beside compute, or ``None`` to do everything on the spot.
        feedback: encodes gradients, with residuals if the recipe asks for them.
    """

    recipe: Recipe
    topology: Topology
    ledger: Ledger
    sender: Sender | None
    feedback: Feedback = field(init=False)
    _pending: list[Ticket] = field(default_factory=list)
    _watched_pass: int = -1

    def __post_init__(self) -> None:
        """Make the residuals, which are the model's own."""
        self.feedback = Residuals() if self.recipe.feedback else NO_FEEDBACK

    def reduce_later(self, job: Job) -> None:
        """Reduce gradients beside compute; ``backward()`` does not return before it is done.

        Callbacks that autograd runs at the end of a backward pass run in order of registration, so
        this one comes after FSDP2's, which reduces the root module's gradients. A pass that failed
        ran no callback, so every pass registers its own.
        """
        assert self.sender is not None  # whoever defers has checked may_defer
        this_pass = torch._C._current_graph_task_id()
        if this_pass != self._watched_pass:
            torch.autograd.Variable._execution_engine.queue_callback(self._finish_pending)
            self._watched_pass = this_pass
        self._pending.append(self.sender.submit(job))

    def reduce_now(self, job: Job) -> None:
        """Reduce gradients and return when it is done, in line after all that is under way.

        Two exchanges among the same ranks must not run at once, and FSDP2 adds what this one
        returns to what an earlier one may still be writing: a module that is used twice before a
        backward pass is reduced twice in it.
        """
        if self.sender is None:
            run_now(job)
        else:
            self.sender.submit(job).wait()

    def _finish_pending(self) -> None:
        pending, self._pending = self._pending, []
        for ticket in pending:
            ticket.wait()

    def may_defer(self, unit: Unit, output: Tensor, *, is_final: bool) -> bool:
        """Whether nobody reads a reduced gradient before the backward pass ends.

        FSDP2 makes the gradients of the sharded parameters views of ``output`` and reads it in
        four cases, in which the reduction must be complete when the socket returns: to divide or
        cast it, to add it to a gradient that is there already, to all-reduce it over replicas, and
        to run a user's hooks.

        Args:
            unit: the module whose gradients are reduced.
            output: where the reduced gradients go.
            is_final: whether the operation leaves nothing for FSDP2 to divide.
        """
        if self.sender is None or not is_final or not in_backward():
            return False
        for member in unit.trained:
            sharded = member.sharded
            if sharded is None or sharded.grad is not None:
                return False
            if member.is_replicated or member.dtype != output.dtype:
                return False
            if getattr(sharded, "_post_accumulate_grad_hooks", None):
                return False
        return not _has_all_reduce_hook(unit)


def in_backward() -> bool:
    """Whether autograd is running a backward pass on this thread."""
    return torch._C._current_graph_task_id() != -1


def _has_all_reduce_hook(unit: Unit) -> bool:
    """Whether a user plugged in ``set_all_reduce_hook``; FSDP2 has no public way to ask.

    If FSDP2's internals are not as they were, the answer is yes, and nothing is deferred.
    """
    try:
        groups = unit.module._get_fsdp_state()._fsdp_param_groups
        return any(group._all_reduce_hook is not None for group in groups)
    except AttributeError:
        return True
