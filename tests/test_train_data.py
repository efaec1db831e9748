"""What a rank sees depends on seed, step and rank alone; the held-out text is not trained on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from thinwire.errors import InputError
from thinwire.train.corpus import Corpus
from thinwire.train.data import Batches

SEQ_LEN = 8
NUM_BYTES = 4000


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    """A text in which the held-out part can be told by its bytes."""
    path = tmp_path / "text"
    num_train = Corpus(path=path, num_bytes=NUM_BYTES, source="").num_train
    content = bytes(index % 200 for index in range(num_train)) + b"\xff" * (NUM_BYTES - num_train)
    path.write_bytes(content)
    return Corpus(path=path, num_bytes=NUM_BYTES, source="text")


def batches(corpus: Corpus, *, rank: int = 0, world: int = 2, seed: int = 0) -> Batches:
    return Batches(corpus, seq_len=SEQ_LEN, micro_batch=3, seed=seed, rank=rank, world=world)


def test_a_batch_is_micro_batch_runs_of_the_text(corpus: Corpus) -> None:
    tokens = batches(corpus).train(0)
    assert tokens.dtype is torch.int64
    assert tokens.shape == (3, SEQ_LEN + 1)
    assert torch.equal((tokens[:, 1:] - tokens[:, :-1]) % 200, torch.ones(3, SEQ_LEN).long())


def test_the_same_numbers_give_the_same_batch_in_any_order(corpus: Corpus) -> None:
    first, second = batches(corpus), batches(corpus)
    late = second.train(7)
    for step in range(7):
        first.train(step)
    assert torch.equal(first.train(7), late)


def test_seed_step_and_rank_each_change_the_batch(corpus: Corpus) -> None:
    drawn = [
        batches(corpus).train(0),
        batches(corpus).train(1),
        batches(corpus, rank=1).train(0),
        batches(corpus, seed=1).train(0),
    ]
    for index, tokens in enumerate(drawn):
        assert not any(torch.equal(tokens, other) for other in drawn[:index])


def test_the_order_of_data_is_frozen(corpus: Corpus) -> None:
    """A change of these numbers makes published figures incomparable: it must be on purpose."""
    assert batches(corpus).train(0)[:, 0].tolist() == [90, 164, 138]


def test_training_never_sees_the_held_out_part_nor_validation_the_other(corpus: Corpus) -> None:
    for step in range(300):
        assert batches(corpus).train(step).max() < 255
    for tokens in batches(corpus).validation():
        assert tokens.min() == 255


@pytest.mark.parametrize("world", [1, 2, 3, 7, 64])
def test_every_rank_validates_in_as_many_equal_batches(corpus: Corpus, world: int) -> None:
    shapes: set[tuple[torch.Size, ...]] = set()
    for rank in range(world):
        found = batches(corpus, rank=rank, world=world).validation()
        shapes.add(tuple(tokens.shape for tokens in found))
    assert len(shapes) == 1
    assert len(shapes.pop()) >= 1


def test_ranks_share_out_the_validation_text(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(bytes(index % 251 for index in range(40_000)))
    corpus = Corpus(path=path, num_bytes=40_000, source="text")

    def sequences(rank: int, world: int) -> list[Tensor]:
        made = batches(corpus, rank=rank, world=world)
        return [sequence for tokens in made.validation() for sequence in tokens]

    alone = {tuple(sequence.tolist()) for sequence in sequences(0, 1)}
    shared = [tuple(s.tolist()) for rank in range(4) for s in sequences(rank, 4)]
    assert set(shared) == alone
    assert len(shared) == len(alone)


def test_a_short_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"short")
    with pytest.raises(InputError, match="too short"):
        batches(Corpus(path=path, num_bytes=5, source="text"))
