"""Local steps: every rank trains on its own and the ranks meet once in ``local_steps`` steps.

DiLoCo (arXiv 2311.08105, algorithm 1). All ranks hold the same anchor, the parameters after the
last meeting. In a meeting

1. pseudo-gradient = anchor - parameters, in fp32;
2. its average over the ranks, in the recipe's format for gradients;
3. one outer step on the anchor: SGD with Nesterov momentum;
4. every rank continues from the anchor.

    rank 0   anchor -> step -> step -> step -.             .-> anchor -> step ...
    rank 1   anchor -> step -> step -> step -+- average ---+-> anchor -> step ...
                                             '- outer step-'

Everything after the average is computed from the same bits, so all ranks hold the same anchor.
Optimizer states and buffers (a BatchNorm's averages) are each rank's own, as in the paper.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from thinwire.comm.sender import Job, run_now
from thinwire.errors import StateError
from thinwire.sharding.averages import average_over
from thinwire.sharding.compression import Compression
from thinwire.sharding.counters import watch_steps
from thinwire.wire.key import Key

__all__ = ["OUTER_LR", "OUTER_MOMENTUM", "LocalSteps", "attach"]

# the paper's choice for the outer optimizer
OUTER_LR, OUTER_MOMENTUM = 0.7, 0.9
# Parameters travel in groups, so that one is encoded while another is on the wire.
GROUP_NUMEL = 4 * 2**20


class LocalSteps:
    """Counts the steps of the model's optimizer and lets the ranks meet.

    Memory: the anchor, its momentum and, during a meeting, the pseudo-gradient: 12 bytes per
    trained parameter, and 4 more for residuals if the recipe feeds back.

    Args:
        model: a plain model, the same on every rank.
        compression: the recipe, the wire and the ledger.
        outer_lr: learning rate of the outer step.
        outer_momentum: its Nesterov momentum; 0: none.
    """

    def __init__(
        self,
        model: nn.Module,
        compression: Compression,
        *,
        outer_lr: float = OUTER_LR,
        outer_momentum: float = OUTER_MOMENTUM,
    ) -> None:
        self._compression = compression
        self._every = dict(model.named_parameters())
        self._trained = {name: p for name, p in self._every.items() if p.requires_grad}
        group = dist.group.WORLD
        assert group is not None  # the ranks have agreed on the recipe
        self._peers = compression.topology.peers(group)
        self._average_over_ranks = average_over(self._peers, compression)
        self._groups = list(_groups(self._trained))
        self._anchor = {
            name: p.detach().contiguous().to(torch.float32, copy=True)
            for name, p in self._trained.items()
        }
        self._outer = torch.optim.SGD(
            self._anchor.values(),
            lr=outer_lr,
            momentum=outer_momentum,
            nesterov=outer_momentum > 0,
        )

    def count_step(self) -> None:
        """Count a step of the optimizer, and meet if it is time."""
        steps = self._compression.counters.count("local steps") + 1
        if steps % self._compression.recipe.local_steps == 0:
            self.meet()

    @torch.no_grad()
    def meet(self) -> None:
        """Average what the ranks learned since the last meeting, and continue from there.

        A collective call.

        Raises:
            StateError: parameters were frozen or unfrozen since the model was sharded.
        """
        trained = {name for name, p in self._every.items() if p.requires_grad}
        changed = sorted(trained ^ self._trained.keys())
        if changed:
            raise StateError(
                f"parameter {changed[0]} was frozen or unfrozen since thinwire.shard, so the ranks "
                "no longer agree on what they exchange; freeze before sharding"
            )
        for name, parameter in self._trained.items():
            self._anchor[name].grad = (self._anchor[name] - parameter).contiguous()
        self._average()
        self._outer.step()
        self._outer.zero_grad()
        for name, parameter in self._trained.items():
            parameter.copy_(self._anchor[name])

    def state(self) -> dict[str, Tensor]:
        """Anchor and outer momentum by ``"anchor/parameter"`` and ``"momentum/parameter"``."""
        state = {f"anchor/{name}": anchor for name, anchor in self._anchor.items()}
        for name, anchor in self._anchor.items():
            momentum = self._outer.state[anchor].get("momentum_buffer")
            if momentum is not None:  # there is none before the first meeting
                state[f"momentum/{name}"] = momentum
        return state

    def check(self, state: Mapping[str, Tensor]) -> None:
        """Raise unless a state is one of this model's anchor and momentum.

        Raises:
            StateError: an entry is missing, unknown, of another dtype, or has another shape than
                its parameter.
        """
        for entry, tensor in state.items():
            kind, _, name = entry.partition("/")
            anchor = self._anchor.get(name)
            if (
                kind not in ("anchor", "momentum")
                or anchor is None
                or (anchor.shape, anchor.dtype) != (tensor.shape, tensor.dtype)
            ):
                raise StateError(
                    f"{entry!r} of shape {tuple(tensor.shape)} is not the anchor or momentum of a "
                    "trained parameter: load the state into the model that it was saved from"
                )
        missing = sorted(name for name in self._anchor if f"anchor/{name}" not in state)
        if missing:
            raise StateError(
                f"the state holds no anchor of parameter {missing[0]}, which is trained now: "
                "freeze what was frozen when it was saved before thinwire.shard"
            )
        has_momentum = {entry.partition("/")[2] for entry in state if entry.startswith("momentum/")}
        if has_momentum and has_momentum != self._anchor.keys():
            raise StateError(
                f"the state holds no momentum of parameter "
                f"{min(self._anchor.keys() - has_momentum)}, but of others: pass what "
                "thinwire.compression_state returned"
            )

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what :meth:`state` returned.

        Raises:
            StateError: see :meth:`check`.
        """
        self.check(state)
        for name, anchor in self._anchor.items():
            anchor.copy_(state[f"anchor/{name}"])
            momentum = state.get(f"momentum/{name}")
            self._outer.state[anchor]["momentum_buffer"] = (
                None if momentum is None else momentum.clone()
            )

    def _average(self) -> None:
        """Average the anchor's gradients over the ranks, group by group."""
        sender = self._compression.sender
        jobs = [self._average_of(names) for names in self._groups]
        if sender is None:
            for job in jobs:
                run_now(job)
        else:
            for ticket in [sender.submit(job) for job in jobs]:
                ticket.wait()

    def _average_of(self, names: list[str]) -> Job:
        compression = self._compression
        gradients = {name: _gradient(self._anchor[name]) for name in names}
        step, rank = compression.counters["local steps"], self._peers.rank
        key = Key(seed=compression.recipe.seed, step=step, rank=rank)
        return self._average_over_ranks.job(gradients, key)


def attach(model: nn.Module, compression: Compression) -> None:
    """Let a plain model's ranks meet as the recipe says. A collective call.

    Rank 0's parameters and buffers become everyone's, as under DDP. From then on every step of an
    optimizer that holds the model's first trained parameter counts, for as long as the model lives.

    Args:
        model: a plain model, of which something is trained.
        compression: the recipe, the wire and the ledger.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        whole = tensor.detach().contiguous()  # which is the tensor itself, but for odd strides
        dist.broadcast(whole, src=0)
        tensor.detach().copy_(whole)
    local_steps = LocalSteps(model, compression)
    compression.stores["outer"] = local_steps
    watch_steps(model, local_steps.count_step)


def _groups(trained: dict[str, nn.Parameter]) -> Iterator[list[str]]:
    """Consecutive parameters of about ``GROUP_NUMEL`` elements together."""
    names: list[str] = []
    numel = 0
    for name, parameter in trained.items():
        names.append(name)
        numel += parameter.numel()
        if numel >= GROUP_NUMEL:
            yield names
            names, numel = [], 0
    if names:
        yield names


def _gradient(anchor: Tensor) -> Tensor:
    assert anchor.grad is not None  # every anchor was given one
    return anchor.grad
