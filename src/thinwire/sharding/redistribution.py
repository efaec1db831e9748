"""A state dealt out to other ranks than saved it: what was lost still enters the reduced gradient.

What is equal on all ranks is taken as it is. Residuals are summed as they would have entered the
reduced gradient, and every rank takes over the sum for its own slice:

    saved by 3 ranks, on its way into an average      taken over by 2
    rank 0   to 0: a0   to 1: a1   to 2: a2           total  = (a + b + c) / 3
    rank 1   to 0: b0   to 1: b1   to 2: b2    -->    rank 0   to 0: 2 x first half of the total
    rank 2   to 0: c0   to 1: c1   to 2: c2           rank 1   to 1: 2 x second half of the total

Note: conservation. ``sum over ranks of weight * residual`` is the same before and after, for every
element, to the rounding of the format in which residuals are kept; the weights are those of
:mod:`thinwire.sharding.portions`. So ``what was applied + what is still to come == sum of reduced
gradients`` holds across the restart, as it does without one.

Rows of resident replicas are left out: the next forward pass makes replicas from the weights.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from thinwire.comm.layout import row_piece_numel
from thinwire.errors import StateError
from thinwire.sharding.arrangement import Arrangement
from thinwire.sharding.compression import Compression
from thinwire.sharding.portions import Gradient, Portion, portions_of, rows_of
from thinwire.wire.feedback import Residuals
from thinwire.wire.residual import Residual

__all__ = ["Redistribution", "is_dealt_out"]

CHOSEN_BITS = "shared/adaptation/bits"
_DEALT_OUT = re.compile(r"rank(\d+)/(residuals|late)/(.+)")


def is_dealt_out(entry: str) -> bool:
    """Whether an entry of a state is one of those that other ranks take over."""
    return _DEALT_OUT.fullmatch(entry) is not None


class Redistribution:
    """The entries of a state that one of other ranks continues from.

    Args:
        compression: of the model that continues.
        saved: how the ranks that saved the state were arranged.
        rank: this rank, of those that continue.
        shapes: the global shape of every parameter, by name.

    Raises:
        StateError: parameters are or were not dealt out by rows over all ranks, or FSDP2 divided
            gradients by itself.
    """

    def __init__(
        self,
        compression: Compression,
        saved: Arrangement,
        rank: int,
        shapes: Mapping[str, torch.Size],
    ) -> None:
        present = Arrangement.of(compression)
        # sums are divided now as they were, which FSDP2 does not tell before the first of them
        self._present = dataclasses.replace(present, divisor=saved.divisor)
        self._compression, self._saved, self._rank = compression, saved, rank
        self._shapes = shapes
        self._check_arrangements()

    def entries(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What this rank loads: shared entries, and its own on the new number of ranks.

        Args:
            state: the entries of all ranks that saved it; this rank's slices of them are read.

        Raises:
            StateError: entries of some ranks are missing, or do not fit the recipe or the model.
        """
        self._check_completeness(state)
        self._check_meeting(state)
        dealt = {entry: tensor for entry, tensor in state.items() if entry.startswith("shared/")}
        adaptation = self._compression.adaptation
        if adaptation is None:
            dealt.pop(CHOSEN_BITS, None)
        else:  # FSDP2 on a single rank reduces nothing, and has none to save
            dealt.setdefault(CHOSEN_BITS, adaptation.state()["bits"])
        residuals: dict[str, dict[tuple[int, str], Tensor]] = defaultdict(dict)
        late: dict[str, dict[int, Tensor]] = defaultdict(dict)
        for rank, kind, name, tensor in _entries(state):
            if kind == "late":
                late[name][rank] = tensor
            else:
                parameter, _, part = name.rpartition("/")
                residuals[parameter][rank, part] = tensor
        for name, lost in residuals.items():
            dealt |= self._residual(Gradient(name=name, shape=self._shapes[name]), lost)
        for name, pieces in late.items():
            dealt |= self._late(name, pieces)
        return dealt

    def _residual(
        self, gradient: Gradient, lost: Mapping[tuple[int, str], Tensor]
    ) -> dict[str, Tensor]:
        """What this rank takes over of all residuals of a parameter, as one of its own."""
        recipe = self._compression.recipe
        saved, present = portions_of(recipe, self._saved), portions_of(recipe, self._present)
        own = present.taken(gradient, self._rank)
        total = torch.zeros(len(own.elements), dtype=torch.float64)
        unread = set(lost)
        for rank in range(self._saved.size):
            for portion in saved.kept(gradient, rank):
                tensor = lost.get((rank, portion.part))
                if tensor is None:
                    continue
                unread.remove((rank, portion.part))
                both = _intersection(portion.elements, own.elements)
                if both:
                    values = self._values(tensor, portion)[_within(both, portion.elements)]
                    total[_within(both, own.elements)] += portion.weight * values.double()
        if unread:
            rank, part = min(unread)
            raise StateError(
                f"recipe {recipe.name} keeps no residual {part!r} of {gradient.name}, which rank "
                f"{rank} saved: load the state with the recipe that it was saved with"
            )
        if not own.elements:
            return {}
        entry = f"rank{self._rank}/residuals/{gradient.name}/{own.part}"
        return {entry: total.div_(own.weight).float()}

    def _values(self, stored: Tensor, portion: Portion) -> Tensor:
        """A residual as it was saved, in floats."""
        feedback = self._compression.feedback
        if not isinstance(feedback, Residuals):
            raise StateError(
                f"recipe {self._compression.recipe.name} has no use for the state's residuals: "
                "load it into a model with the recipe that it was saved with"
            )
        numel, fmt = len(portion.elements), feedback.policy.format
        residual = Residual(numel, fmt, torch.device("cpu"), undoable=False)
        residual.load(stored.detach().cpu())
        return residual.values()

    def _late(self, name: str, pieces: Mapping[int, Tensor]) -> dict[str, Tensor]:
        """This rank's shard of a gradient that is one step late.

        On a single rank nothing is reduced, so nothing is late: the gradient is left out, as the
        last one of a run is.
        """
        if self._present.size == 1:
            return {}
        shape, num_shards = self._shapes[name], self._present.num_shards
        own = rows_of(shape, num_shards, self._rank % num_shards)
        shard = torch.zeros(row_piece_numel(shape, num_shards))
        # hosts that average hold the same: the first of them will do
        for rank in range(self._saved.num_shards):
            piece, rows = pieces.get(rank), rows_of(shape, self._saved.num_shards, rank)
            if piece is None or piece.numel() != row_piece_numel(shape, self._saved.num_shards):
                raise StateError(
                    f"the late gradient of {name} that rank {rank} saved is missing, or of another "
                    "size: load the state into the model that it was saved from, or leave it out"
                )
            both = _intersection(rows, own)
            if both:
                shard[_within(both, own)] = piece.detach().cpu().view(-1)[_within(both, rows)]
        return {f"rank{self._rank}/late/{name}": shard}

    def _check_arrangements(self) -> None:
        recipe = self._compression.recipe
        for ranks, arrangement in (("saved it", self._saved), ("load it", self._present)):
            expected = arrangement.usual_shards(recipe)
            if arrangement.num_shards != expected:
                raise StateError(
                    f"the state is that of {self._saved}, and can be dealt out to {self._present} "
                    f"only if rows of all parameters are shared by {expected} of the ranks that "
                    f"{ranks}, as recipe {recipe.name} shares them, which is not so: load it with "
                    "the recipe that it was saved with, start as many ranks as saved it, or leave "
                    "it out and train on with fresh residuals"
                )
        if self._saved.divisor is not None and math.isnan(self._saved.divisor):
            raise StateError(
                f"the state is that of {self._saved} and cannot be dealt out to {self._present}: "
                "FSDP2 divided sums of gradients by itself (fp16, or a forced SUM), by what is not "
                "known; start as many ranks as saved it, or leave the state out"
            )

    def _check_completeness(self, state: Mapping[str, Tensor]) -> None:
        present = {rank for rank, _, _, _ in _entries(state)}
        missing = sorted(set(range(self._saved.size)) - present)
        more = sorted(present - set(range(self._saved.size)))
        if more:
            raise StateError(
                f"the state is that of {self._saved}, but holds entries of rank {more[0]}: join "
                "files of one run only, and pass what thinwire.compression_state returned there"
            )
        if present and missing:
            raise StateError(
                f"the state is that of {self._saved}, and dealing it out to {self._present} takes "
                f"what all of them remember, but that of rank {missing[0]} is missing: join the "
                "states from the files of all ranks with |, or with torch.distributed.checkpoint "
                "load what thinwire.blank_compression_state(metadata, every_rank=True) returns"
            )

    def _check_meeting(self, state: Mapping[str, Tensor]) -> None:
        local_steps = self._compression.recipe.local_steps
        counted = state.get("shared/counters/local steps")
        since = 0 if counted is None else int(counted) % local_steps
        if local_steps > 1 and since:
            raise StateError(
                f"the state was saved {since} of {local_steps} local steps after a meeting, when "
                f"each of {self._saved} had weights of its own, which cannot be dealt out to "
                f"{self._present}: save when the number of steps is a multiple of {local_steps}, "
                "start as many ranks as saved it, or leave the state out"
            )


def _entries(state: Mapping[str, Tensor]) -> Iterator[tuple[int, str, str, Tensor]]:
    """Rank, kind, name and tensor of the entries that are dealt out."""
    for entry, tensor in state.items():
        found = _DEALT_OUT.fullmatch(entry)
        if found:
            yield int(found[1]), found[2], found[3], tensor


def _intersection(one: range, other: range) -> range:
    return range(max(one.start, other.start), min(one.stop, other.stop))


def _within(elements: range, outer: range) -> slice:
    """Where elements lie in a tensor that begins with the first of ``outer``."""
    return slice(elements.start - outer.start, elements.stop - outer.start)
