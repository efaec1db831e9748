"""One joint decision whether a step's gradients may be used.

A NaN in one rank's shard must not be applied by the others, nor may one rank skip a step that the
others take: parameters, optimizer states and whatever the codecs remember would drift apart. So
every rank says what it sees in one small all-reduce, and all do the same.

    rank 0   loss 2.1   finite  ─┐                      ┌─> skip
    rank 1   loss 2.3   NaN     ─┼─ all-reduce (sum) ───┼─> skip     mean loss, ranks that said no
    rank 2   loss 2.2   finite  ─┘                      └─> skip
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from thinwire.errors import ConfigError, RankError

__all__ = ["Agreement", "FiniteCheck"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What all ranks decided about a step.

    Attributes:
        mean_loss: over all ranks; NaN if one of them is.
        refusing_ranks: those with a loss or a gradient that is not finite; the step is taken only
            if there is none.
    """

    mean_loss: float
    refusing_ranks: tuple[int, ...]

    @property
    def take_step(self) -> bool:
        """Whether every rank may step."""
        return not self.refusing_ranks


class FiniteCheck:
    """Asks all ranks, step by step, and gives up after too many skips or empty steps in a row.

    The all-reduce is plain, of ``world + 2`` doubles: it belongs to the trainer, not to the recipe,
    and is not in the ledger.

    Args:
        max_skips: steps that may be skipped in a row.
        max_zeros: steps in a row of which every gradient may be exactly 0. A late gradient's first
            one is; many are a loss or a wrapping that has nothing to do with the parameters.

    Raises:
        ConfigError: a number is negative.
    """

    def __init__(self, *, max_skips: int = 5, max_zeros: int = 5) -> None:
        for name, value in (("max_skips", max_skips), ("max_zeros", max_zeros)):
            if value < 0:
                raise ConfigError(f"{name}: {value} is below 0")
        self._max_skips, self._max_zeros = max_skips, max_zeros
        self._skips = self._zeros = 0

    def agree(self, loss: Tensor, gradients: Iterable[Tensor]) -> Agreement:
        """Decide together. Every rank must call this once per step, before the optimizer.

        Args:
            loss: this rank's, a scalar.
            gradients: this rank's; of a sharded gradient its own shard is looked at.

        Raises:
            RankError: on every rank, when more steps than allowed were skipped, or had no gradient
                but zeros, in a row.
        """
        rank, world = dist.get_rank(), dist.get_world_size()
        largest = _largest_magnitude(gradients, loss.device)
        votes = torch.zeros(world + 2, dtype=torch.float64, device=loss.device)
        votes[0] = loss.detach()
        votes[1] = largest != 0
        votes[2 + rank] = (largest.isfinite() & loss.detach().isfinite()).logical_not()
        dist.all_reduce(votes)
        total, with_gradient, *refusals = votes.tolist()
        agreement = Agreement(
            mean_loss=total / world,
            refusing_ranks=tuple(index for index, refusal in enumerate(refusals) if refusal),
        )
        self._skips = 0 if agreement.take_step else self._skips + 1
        if self._skips > self._max_skips:
            ranks = ", ".join(str(index) for index in agreement.refusing_ranks)
            raise RankError(
                f"{self._skips} steps in a row had a loss or a gradient that is not finite, "
                f"the last one on rank {ranks}; lower the learning rate"
            )
        self._zeros = 0 if with_gradient else self._zeros + 1
        if self._zeros > self._max_zeros:
            raise RankError(
                f"every gradient was exactly 0 for {self._zeros} steps in a row, on all ranks: "
                "nothing is learned; check that the loss depends on the model's parameters and "
                "that they require gradients"
            )
        return agreement


def _largest_magnitude(gradients: Iterable[Tensor], device: torch.device) -> Tensor:
    """Of all gradients, as a scalar tensor: no wait for an accelerator per gradient.

    It tells exactly whether all are finite: a NaN or an Inf is passed on, and a sum that overflows
    cannot be mistaken for one.
    """
    shards = (_own_shard(gradient) for gradient in gradients)
    observed = [shard for shard in shards if shard.numel() > 0]
    if not observed:
        return torch.zeros((), device=device)
    if all(shard.device.type == "cpu" and shard.is_floating_point() for shard in observed):
        # there the extremes of a tensor take a sixteenth of the time of its infinity norm
        extremes = [extreme for shard in observed for extreme in torch.aminmax(shard)]
        return torch.stack([extreme.double() for extreme in extremes]).abs().amax()
    return torch.nn.utils.get_total_norm(observed, norm_type=math.inf)


def _own_shard(gradient: Tensor) -> Tensor:
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
