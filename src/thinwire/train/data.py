"""Batches drawn from a text: what a rank sees in a step depends on nothing but three numbers.

The position of every sequence is a hash of (seed, step, rank, index). No random state is kept, so
every recipe sees the same data in the same order, and a run that resumes goes on where it stopped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor

from thinwire.errors import InputError
from thinwire.train.corpus import Corpus

__all__ = ["Batches"]

VALIDATION_SEQUENCES = 64
SEQUENCES_PER_FORWARD = 8  # enough that a thin wire's gathers are shared, little enough to hold


class Batches:
    """The batches of one rank.

    Args:
        corpus: the text; the sequences of a step may overlap those of other steps.
        seq_len: tokens that the model sees; a sequence holds one more, the last one to predict.
        micro_batch: sequences per rank and step.
        seed: of the run; the same for every recipe.
        rank: of this process, from 0.
        world: number of ranks.

    Raises:
        InputError: the text is too short, or its file has changed since it was opened.
    """

    def __init__(
        self, corpus: Corpus, *, seq_len: int, micro_batch: int, seed: int, rank: int, world: int
    ) -> None:
        corpus.check_length(seq_len)
        if corpus.path.stat().st_size != corpus.num_bytes:
            # beyond the end of a mapped file there is no error, only a signal that kills
            raise InputError(f"text {corpus.source}: {corpus.path} was changed during the run")
        text = torch.from_file(
            str(corpus.path), shared=False, size=corpus.num_bytes, dtype=torch.uint8
        )
        self._train = text[: corpus.num_train]
        self._held_out = text[corpus.num_train :]
        self._seq_len = seq_len
        self._micro_batch = micro_batch
        self._seed = seed
        self._rank = rank
        self._world = world

    def train(self, step: int) -> Tensor:
        """The sequences of a step: int64, ``[micro_batch, seq_len + 1]``."""
        num_starts = len(self._train) - self._seq_len
        starts = [
            _hash(self._seed, step, self._rank, index) % num_starts
            for index in range(self._micro_batch)
        ]
        return self._gather(self._train, starts)

    def validation(self) -> Iterator[Tensor]:
        """This rank's share of the held-out text, in batches of ``[8, seq_len + 1]``.

        Sequences are spread evenly over the held-out text, and over the ranks. Every rank gets the
        same number of equal batches, because each forward is a collective.
        """
        num_starts = len(self._held_out) - self._seq_len
        per_round = self._world * SEQUENCES_PER_FORWARD
        rounds = max(1, VALIDATION_SEQUENCES // per_round)
        total = rounds * per_round
        starts = [index * num_starts // total for index in range(self._rank, total, self._world)]
        for begin in range(0, len(starts), SEQUENCES_PER_FORWARD):
            yield self._gather(self._held_out, starts[begin : begin + SEQUENCES_PER_FORWARD])

    def _gather(self, text: Tensor, starts: list[int]) -> Tensor:
        length = self._seq_len + 1
        return torch.stack([text[start : start + length] for start in starts]).long()


def _hash(*numbers: int) -> int:
    """A number below 2**64 that depends on all arguments, the same everywhere."""
    digest = hashlib.blake2b(repr(numbers).encode("ascii"), digest_size=8).digest()
    return int.from_bytes(digest, "little")
