"""Counter-based random numbers: the same key gives the same bits, on every device, in any order.

A random number is a hash of (key, block, position in the block) and of nothing else. There is no
generator whose state could drift between ranks, between the reference and a kernel, or between a
run and its repetition. `Key` mixes 64 bits in Python once per tensor; from there

    block word  = low 32 bits of mix64(key + block number)
    random word = mix32(block word + position)

``mix64`` is the finalizer of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014); ``mix32`` is
"lowbias32" of Chris Wellons' hash-prospector: two multiplications, the least biased of its size.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from thinwire.errors import ConfigError

__all__ = ["Key", "key_tensor", "random_halves", "random_words"]

_MASK_64 = (1 << 64) - 1
_MASK_32 = (1 << 32) - 1
GOLDEN_64 = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Key:
    """Names the random numbers of one tensor on one rank in one step.

    Attributes:
        seed: the run's seed.
        step: the optimizer step.
        parameter: the parameter's name, or its number.
        rank: the rank that encodes.
        salt: what `fold` has mixed in; 0 to begin with.

    Raises:
        ConfigError: a part is no whole number, and the parameter no name either.
    """

    seed: int = 0
    step: int = 0
    parameter: str | int = ""
    rank: int = 0
    salt: int = 0

    def __post_init__(self) -> None:
        """Refuse what has no bits to mix."""
        for part in ("seed", "step", "rank", "salt"):
            if not isinstance(getattr(self, part), int):
                raise ConfigError(
                    f"{part} of a key is a whole number, not {getattr(self, part)!r}: "
                    "write for example Key(seed=0, step=3, parameter='layer.weight', rank=1)"
                )
        if not isinstance(self.parameter, str | int):
            raise ConfigError(f"parameter of a key is a name or a number, not {self.parameter!r}")

    def fold(self, word: str | int) -> Key:
        """A key of its own for the part called ``word`` of what this key names."""
        return replace(self, salt=mix64(self.salt + GOLDEN_64 ^ _as_word(word)))

    @property
    def value(self) -> int:
        """The 64 bits that a codec counts from."""
        value = 0
        for word in (self.seed, self.step, _as_word(self.parameter), self.rank, self.salt):
            value = mix64((value ^ word) + GOLDEN_64)
        return value

    @property
    def signed_value(self) -> int:
        """`value` as a signed 64-bit number, which is what tensors and kernels hold."""
        value = self.value
        return value - (1 << 64) if value >> 63 else value


def mix64(word: int) -> int:
    """SplitMix64's finalizer: a bijection of 64 bits in which every input bit reaches all."""
    word &= _MASK_64
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & _MASK_64
    word = (word ^ word >> 27) * 0x94D049BB133111EB & _MASK_64
    return word ^ word >> 31


def _as_word(value: str | int) -> int:
    """64 bits of a name (a cryptographic digest, so that no two parameters collide) or a number."""
    if isinstance(value, int):
        return value & _MASK_64
    return int.from_bytes(hashlib.blake2b(value.encode(), digest_size=8).digest(), "little")


def key_tensor(key: Key, device: torch.device) -> Tensor:
    """The key's 64 bits as a 0-D int64 tensor, so that compiled code does not depend on them."""
    return torch.full((), key.signed_value, dtype=torch.int64, device=device)


def random_words(key: Tensor, blocks: Tensor, width: int) -> Tensor:
    """Random words for ``width`` positions of every block in ``blocks``.

    Args:
        key: as made by `key_tensor`.
        blocks: numbers of the blocks, int64, shape [rows].
        width: positions per block.

    Returns:
        int64 of shape [rows, width], every value in 0 .. 2**32 - 1.
    """
    # int64 arithmetic wraps around like the kernels' unsigned one; only shifts need masks.
    base = (_mix64_tensor(blocks + key) & _MASK_32).unsqueeze(1)
    positions = torch.arange(width, dtype=torch.int64, device=blocks.device)
    return _mix32_tensor(base + positions & _MASK_32)


def random_halves(key: Tensor, blocks: Tensor, width: int) -> Tensor:
    """16 random bits for each of ``width`` elements of every block: int64 in 0 .. 65535.

    One word serves two elements: its low half an element of the first half of the block, its high
    half the element half a block further on. Shape [len(blocks), width].
    """
    words = random_words(key, blocks, (width + 1) // 2)
    return torch.cat((words & 0xFFFF, words >> 16), dim=1)[:, :width]


def _mix64_tensor(word: Tensor) -> Tensor:
    word = (word ^ _shift_right(word, 30)) * (0xBF58476D1CE4E5B9 - (1 << 64))
    word = (word ^ _shift_right(word, 27)) * (0x94D049BB133111EB - (1 << 64))
    return word ^ _shift_right(word, 31)


def _mix32_tensor(word: Tensor) -> Tensor:
    word = (word ^ word >> 16) * 0x7FEB352D & _MASK_32
    word = (word ^ word >> 15) * 0x846CA68B & _MASK_32
    return word ^ word >> 16


def _shift_right(word: Tensor, count: int) -> Tensor:
    """A logical shift: torch's own carries the sign down."""
    return word >> count & ((1 << (64 - count)) - 1)
