"""Random numbers that depend on the key, the block and the position, and on nothing else."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from thinwire.wire import Key
from thinwire.wire.key import key_tensor, mix64, random_halves, random_words
from wire_cases import CPU


def test_every_part_of_a_key_counts() -> None:
    keys = [
        Key(),
        Key(seed=1),
        Key(step=1),
        Key(parameter=1),
        Key(parameter="1"),
        Key(rank=1),
        Key().fold(1),
        Key().fold("1"),
        Key().fold(1).fold(1),
        Key().fold(1).fold(2),
        Key().fold(2).fold(1),
        Key(seed=-1),
    ]
    assert len({key.value for key in keys}) == len(keys)
    assert Key(1, 2, "a", 3).value == Key(seed=1, step=2, parameter="a", rank=3).value


def test_the_value_never_changes_between_versions() -> None:
    # Resumed runs must draw what they would have drawn: this number is part of the wire format.
    assert Key(seed=1, step=2, parameter="layer.weight", rank=3).value == 0xD81BF7E25D56782D


def test_mix64_is_the_published_finalizer() -> None:
    # First output of SplitMix64 seeded with 0: the finalizer applied to the golden gamma.
    assert mix64(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF


@given(st.integers(-(2**70), 2**70))
def test_the_signed_value_has_the_same_64_bits(seed: int) -> None:
    key = Key(seed=seed)
    assert key.signed_value % 2**64 == key.value
    assert -(2**63) <= key.signed_value < 2**63


def test_words_depend_on_block_and_position_alone() -> None:
    key = key_tensor(Key(seed=5), CPU)
    whole = random_words(key, torch.arange(10), 64)
    assert torch.equal(random_words(key, torch.tensor([7, 2]), 64), whole[[7, 2]])
    assert torch.equal(random_words(key, torch.arange(10), 16), whole[:, :16])
    assert whole.min() >= 0
    assert whole.max() < 2**32


def test_the_low_half_of_a_word_serves_the_first_half_of_a_block() -> None:
    key = key_tensor(Key(seed=6), CPU)
    words = random_words(key, torch.arange(3), 5)
    halves = random_halves(key, torch.arange(3), 9)  # odd: the middle element has a low half only
    assert torch.equal(halves[:, :5], words & 0xFFFF)
    assert torch.equal(halves[:, 5:], words[:, :4] >> 16)


def test_halves_are_uniform_and_independent_of_their_neighbours() -> None:
    count = 2**20
    halves = random_halves(key_tensor(Key(seed=9), CPU), torch.arange(count // 128), 128).double()
    centred = (halves + 0.5) / 65536 - 0.5
    sigma = 1 / math.sqrt(12 * count)  # of the mean of uniform numbers
    assert centred.mean().abs() < 4 * sigma
    for shift in (1, 64, 128):  # neighbours, the two halves of a word, the same place a block on
        flat = centred.flatten()
        product = (flat[:-shift] * flat[shift:]).mean()
        assert product.abs() < 4 / (12 * math.sqrt(count))
    # Each of 16 bits is set half the time, within 4 sigma of a binomial.
    for bit in range(16):
        share = (halves.long() >> bit & 1).double().mean()
        assert (share - 0.5).abs() < 4 * 0.5 / math.sqrt(count)
