"""Gradients' numbers of bits, chosen anew every so many steps from what gradients look like.

    step 1     the widest format that keeps to the budget, for all; observe
    step 2     chosen formats
     ...
    step K     chosen formats; observe
    step K+1   formats chosen anew

While a step is observed every rank encodes its own slot of its own contribution in every candidate,
so that all ranks together look at every parameter once; under ``hybrid``, where a slot is a host's,
all ranks of every host do. The losses are summed over the ranks right
after the optimizer's step, where all ranks are at the same place and nothing waits for a reduction;
from equal sums all make the same choice (L-GreCo, Markov et al., arXiv 2210.17357).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from thinwire.comm.layout import Piece
from thinwire.comm.ledger import Ledger
from thinwire.comm.stock import all_reduce_losses
from thinwire.comm.topology import Peers
from thinwire.errors import ConfigError, StateError
from thinwire.recipe import Recipe
from thinwire.rules import ChosenFormats, with_other_bits
from thinwire.wire.adaptive import AdaptiveFormats
from thinwire.wire.budget import Budget, ByteBudget, ErrorBudget
from thinwire.wire.key import Key

__all__ = ["Adaptation"]


class Adaptation:
    """The formats of one model's gradients.

    Parameters that travel exactly, and those that ``grads_for`` names, keep their format and do not
    count in the mean.

    Args:
        recipe: its ``grads``, with any number of bits, are the candidates.
        pieces: how every parameter is dealt out, in the recipe's format; several for one that is
            dealt out part by part.
        peers: the ranks that reduce gradients together.
        ledger: where the formats are entered.

    Raises:
        ConfigError: even the narrowest candidate takes too many bytes, or nothing adapts.
    """

    def __init__(
        self, recipe: Recipe, pieces: Iterable[Piece], peers: Peers, ledger: Ledger
    ) -> None:
        self._rule = recipe.grad_rule
        self._first, self._every = max(1, recipe.warmup_steps), recipe.adaptive_every
        self._seed, self._peers, self._ledger = recipe.seed, peers, ledger
        parts: dict[str, list[int]] = {}
        for piece in pieces:
            if piece.format == self._rule.usual and not self._rule.is_exception(piece.name):
                slots = range(peers.size)
                parts.setdefault(piece.name, []).extend(map(piece.real_numel, slots))
        if not parts:
            raise ConfigError(
                f"recipe {recipe.name}: adaptive_bits and adaptive_error have no effect, for every "
                "parameter travels exactly or in a format of its own; leave them out, or change "
                "exact, min_numel or grads_for"
            )
        candidates = with_other_bits(self._rule.usual)
        self._adaptive = AdaptiveFormats(parts, candidates, _budget(recipe))
        self.formats = self._present()

    def observe(self, gradients: Iterable[tuple[str, Tensor]], num_steps: int) -> None:
        """Look at a contribution to a reduction if formats are chosen anew after this step.

        Args:
            gradients: the part of every gradient that is this rank's own slot, by the parameter's
                name: 1-D and contiguous, fp32, bf16 or fp16. Drawn from only if it is time.
            num_steps: steps that were taken so far.
        """
        if not self._is_due(num_steps + 1):
            return
        key = Key(seed=self._seed, step=num_steps, rank=self._peers.rank).fold("observed")
        for name, values in gradients:
            if name in self.formats.chosen and len(values):
                self._adaptive.observe(name, values, key.fold(name))

    def end_step(self, num_steps: int, device: torch.device) -> None:
        """Choose formats anew if it is time. A collective call then.

        Args:
            num_steps: steps that were taken so far.
            device: where the ranks' backend takes tensors from.
        """
        if not self._is_due(num_steps):
            return
        losses = all_reduce_losses(self._adaptive.losses().to(device), self._peers, self._ledger)
        if losses.any():  # no gradient was finite, or none was reduced: nothing is known
            self._adaptive.choose(losses.cpu())
            self.formats = self._present()

    def commit(self) -> None:
        """The step was taken; what it showed was used."""

    def undo(self) -> None:
        """Forget what the step under way showed."""
        self._adaptive.forget()

    def state(self) -> dict[str, Tensor]:
        """The number of bits of every parameter, in the order of names; equal on all ranks."""
        bits = [self._adaptive.format_of(name).bits for name in self._adaptive.names]
        return {"bits": torch.tensor(bits)}

    def check(self, state: Mapping[str, Tensor]) -> None:
        """Raise unless a state is one of such bits.

        Raises:
            StateError: the bits are not those of this model's parameters, or there is no candidate
                of as many.
        """
        bits = state.get("bits")
        if bits is None or bits.shape != (len(self._adaptive.names),) or bits.is_floating_point():
            raise StateError(
                f"the state does not hold the bits of {len(self._adaptive.names)} parameters: "
                "load it into the model that it was saved from, with the same recipe"
            )
        candidates = {fmt.bits for fmt in self._adaptive.candidates}
        unknown = sorted(set(bits.tolist()) - candidates)
        if unknown:
            raise StateError(
                f"the state's gradients have {unknown[0]} bits, and the candidates are of "
                f"{sorted(candidates)} bits: load it into a model with the recipe that it was "
                "saved with"
            )

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what :meth:`state` returned.

        Raises:
            StateError: see :meth:`check`.
        """
        self.check(state)
        by_bits = {fmt.bits: fmt for fmt in self._adaptive.candidates}
        self._adaptive.take([by_bits[int(number)] for number in state["bits"]])
        self.formats = self._present()

    def _is_due(self, num_steps: int) -> bool:
        return num_steps == self._first or (
            num_steps > self._first and num_steps % self._every == 0
        )

    def _present(self) -> ChosenFormats:
        chosen = {name: self._adaptive.format_of(name) for name in self._adaptive.names}
        self._ledger.enter_formats({name: str(fmt) for name, fmt in chosen.items()})
        return ChosenFormats(chosen, self._rule)


def _budget(recipe: Recipe) -> Budget:
    if recipe.adaptive_bits is not None:
        return ByteBudget(recipe.adaptive_bits)
    assert recipe.adaptive_error is not None  # whoever adapts was asked to
    return ErrorBudget(recipe.adaptive_error)
