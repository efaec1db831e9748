"""What the sockets of one model share, and the rule for leaving work to the sending threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from thinwire.comm.layout import Piece
from thinwire.comm.ledger import Ledger
from thinwire.comm.sender import Job, Sender, Ticket, run_now, shared_delta_sender
from thinwire.comm.topology import Peers, Topology, backend_device
from thinwire.errors import ConfigError
from thinwire.formats import parse_format
from thinwire.recipe import Recipe
from thinwire.rules import FormatRule, FormatSource
from thinwire.sharding.adaptation import Adaptation
from thinwire.sharding.counters import Counters
from thinwire.sharding.held import HeldSum
from thinwire.sharding.late import LateGradients
from thinwire.sharding.units import Unit
from thinwire.wire.feedback import NO_FEEDBACK, OpenFeedback, ResidualPolicy, Residuals

__all__ = ["STEPS", "Compression", "Store", "in_backward"]

STEPS = "steps"  # the counter of optimizer steps
EXACT = FormatRule(parse_format("fp32"))


class Store(Protocol):
    """Something that goes into a checkpoint."""

    def state(self) -> dict[str, Tensor]:
        """All there is to keep, as plain tensors by name; not copies."""

    def check(self, state: Mapping[str, Tensor]) -> None:
        """Raise StateError unless :meth:`load` could continue from a state. Changes nothing."""

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what :meth:`state` returned, without keeping its tensors."""


@runtime_checkable
class StepMemory(Protocol):
    """Something that reductions change before it is known whether their step is taken."""

    def commit(self) -> None:
        """The step under way was taken."""

    def undo(self) -> None:
        """The step under way is not taken: be as before it."""


class UnderWay(Protocol):
    """A reduction that was begun."""

    def wait(self) -> None:
        """Return when it is done; raise its error."""


@dataclass(slots=True)
class Compression:
    """The parts that all sockets of one model share.

    Attributes:
        recipe: what travels in which format.
        topology: which ranks share a host.
        ledger: where sent bytes are recorded.
        sender: runs jobs beside compute, or ``None`` to do everything on the spot.
        feedback: encodes gradients, with residuals if the recipe asks for them.
        weight_formats: the format of every parameter on the wire.
        grad_formats: the format of every gradient; across hosts if there are two hops.
        grad_formats_within: the same for the first hop; ``None``: there is one hop only.
        counters: of steps, and of what random numbers are keyed by; equal on all ranks.
        adaptation: chooses the formats of gradients, if the recipe lets their bits adapt.
        late: the gradients that wait for the next step, if the recipe lets them be late.
        num_shards: the ranks over which FSDP2 deals out the rows of every parameter; 1: parameters
            are whole; 0: they are cut in another way.
        divisor: by what FSDP2 has sums of gradients divided, if not by the number of ranks.
        stays_within: whether gradients stay within the host, since the micro-batch under way is not
            the last of its step.
        held_sums: what early micro-batches left within the host, of all sockets.
        stores: what else goes into a checkpoint, by name. Nothing in there may keep the model
            alive.
    """

    recipe: Recipe
    topology: Topology
    ledger: Ledger
    sender: Sender | None
    feedback: OpenFeedback = field(init=False)
    weight_formats: FormatSource = field(init=False)
    grad_formats: FormatSource = field(init=False)
    grad_formats_within: FormatSource | None = field(init=False)
    counters: Counters = field(default_factory=Counters)
    adaptation: Adaptation | None = None
    late: LateGradients | None = field(init=False)
    num_shards: int = 1
    divisor: float | None = None
    stays_within: bool = False
    held_sums: list[HeldSum] = field(default_factory=list)
    stores: dict[str, Store] = field(default_factory=dict)
    _rule: FormatRule = field(init=False)
    _rule_within: FormatRule | None = field(init=False)
    _pending: list[UnderWay] = field(default_factory=list)
    _watched_pass: int = -1

    def __post_init__(self) -> None:
        """Make what the recipe describes; residuals are the model's own."""
        self.weight_formats = self.recipe.weight_rule
        self._rule, self._rule_within = self.recipe.grad_rule, self.recipe.grad_rule_within
        self.choose_formats()
        self.feedback = Residuals(_policy(self.recipe)) if self.recipe.feedback else NO_FEEDBACK
        self.late = LateGradients() if self.recipe.staleness else None

    def adapt(self, pieces: Iterable[Piece], peers: Peers) -> None:
        """Have the bits of gradients adapt if the recipe asks for it.

        Args:
            pieces: how every parameter is dealt out, in the recipe's format.
            peers: the ranks that reduce gradients together.
        """
        if not self.recipe.adapts:
            return
        recipe = self.recipe
        if recipe.reduces_within and len(set(peers.hosts)) == 1:
            raise ConfigError(
                f"recipe {recipe.name}: adaptive_bits and adaptive_error choose the formats of "
                "what crosses hosts, and all ranks are on one host; leave hybrid, grads_within and "
                "accumulate=within out, or bits as they are"
            )
        self.adaptation = Adaptation(recipe, pieces, peers, self.ledger)
        self.stores["adaptation"] = self.adaptation
        self.choose_formats()

    def observe(self, gradients: Iterable[tuple[str, Tensor]]) -> None:
        """Look at a contribution to a reduction; see :meth:`Adaptation.observe`.

        To be called where all of a step's calls precede the optimizer's step: not in a job.
        """
        if self.adaptation is not None:
            self.adaptation.observe(gradients, self.counters[STEPS])

    def count_step(self) -> None:
        """Count a step of the model's optimizer: what it changed stays, formats may change."""
        self.counters.count(STEPS)
        for memory in self._memories():
            memory.commit()
        if self.adaptation is not None:
            self.adaptation.end_step(self.counters[STEPS], backend_device())
        self.choose_formats()

    def new_held_sum(self) -> HeldSum:
        """A place for what a socket's early micro-batches leave within the host."""
        self.held_sums.append(HeldSum())
        return self.held_sums[-1]

    def undo_step(self) -> None:
        """Be as before the step under way, as far as the recipe has that kept."""
        if self.late is None:
            # those of a backward pass that raised write to what is returned to here
            self.finish_jobs()
            self._pending.clear()
        for held in self.held_sums:
            held.drop()
        if self.late is not None:
            return  # what a step changes is in use, or still to come, when it is skipped
        for memory in self._memories():
            memory.undo()

    def finish_jobs(self) -> None:
        """Return when no job writes to what is remembered; a job's error is left to its ticket."""
        for sender in (self.sender, self.delta_sender):
            if sender is not None:
                sender.finish()

    def choose_formats(self) -> None:
        """Let gradients travel in the recipe's formats, or those chosen, once warm-up is over."""
        # the same objects as before where nothing changes: layouts are kept as long as their source
        if self.counters[STEPS] < self.recipe.warmup_steps:
            self.grad_formats, self.grad_formats_within = EXACT, None
        else:
            adapted = None if self.adaptation is None else self.adaptation.formats
            self.grad_formats, self.grad_formats_within = adapted or self._rule, self._rule_within

    @property
    def delta_sender(self) -> Sender | None:
        """Runs the jobs of deltas: the sender, unless late gradients are in line there."""
        if self.sender is None or self.late is None:
            return self.sender
        return shared_delta_sender()

    def _memories(self) -> Iterator[StepMemory]:
        """Everything that a step changes before it is known whether it is taken."""
        yield self.counters
        if isinstance(self.feedback, Residuals) and self.feedback.policy.undoable:
            yield self.feedback
        yield from (store for store in self.stores.values() if isinstance(store, StepMemory))

    def reduce_late(self, job: Job) -> Ticket | None:
        """Reduce gradients that nobody waits for before the next step; the receipt, if under way.

        Such jobs do not wait for room in the line: what they hold is kept until then in any case.
        """
        if self.sender is None:
            run_now(job)
            return None
        return self.sender.submit(job, waits_for_room=False)

    def reduce_later(
        self, job: Job, when_done: Callable[[BaseException | None], None] | None = None
    ) -> None:
        """Reduce gradients beside compute; ``backward()`` does not return before it is done.

        Args:
            job: what reduces them.
            when_done: told when the job has ended; its error is raised at the end of backward.
        """
        assert self.sender is not None  # whoever defers has checked may_defer
        self.finish_with_backward(self.sender.submit(job, when_done))

    def finish_with_backward(self, reduction: UnderWay) -> None:
        """Have ``backward()`` wait for a reduction, and raise its error. Within backward only.

        Callbacks that autograd runs at the end of a backward pass run in order of registration, so
        this one comes after FSDP2's, which reduces the root module's gradients, and before DDP's,
        which would wrap an error in one of its own. A pass that failed ran no callback, so every
        pass registers its own.
        """
        this_pass = torch._C._current_graph_task_id()
        if this_pass != self._watched_pass:
            torch.autograd.Variable._execution_engine.queue_callback(self._finish_pending)
            self._watched_pass = this_pass
        self._pending.append(reduction)

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
        for reduction in pending:
            reduction.wait()

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
        return not unit.has_foreign_all_reduce_hook


def in_backward() -> bool:
    """Whether autograd is running a backward pass on this thread."""
    return torch._C._current_graph_task_id() != -1


def _policy(recipe: Recipe) -> ResidualPolicy:
    return ResidualPolicy(
        format=parse_format(recipe.residual),
        average=recipe.residual_average,
        reset_every=recipe.residual_reset,
        undoable=recipe.residual_undo and not recipe.staleness,
    )
