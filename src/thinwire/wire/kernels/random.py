"""Random numbers as in `thinwire.wire.key`: a hash of key, block and position."""

from __future__ import annotations

from typing import Any

import numpy as np

from thinwire.wire.kernels.compiled import element, loop

__all__ = ["block_word", "centred_high", "centred_low", "random_word"]

# Mantissa bits of a float in [1, 2): 16 random ones, then half a step, so that their mean is 1.5.
_MANTISSA = np.uint32(0x7FFF80)
_ONE_AND_HALF_STEP = np.uint32(0x3F800040)
_CENTRE = np.float32(1.5)


@loop
def block_word(key: int, block: int) -> Any:
    """32 bits that name a block: the low half of SplitMix64's finalizer of key + block."""
    word = np.uint64(key) + np.uint64(block)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.uint32(word ^ (word >> np.uint64(31)))


@element
def random_word(base: Any, position: Any) -> Any:
    """32 random bits: "lowbias32" of base + position."""
    word = np.uint32(base + np.uint32(position))
    word = np.uint32((word ^ (word >> np.uint32(16))) * np.uint32(0x7FEB352D))
    word = np.uint32((word ^ (word >> np.uint32(15))) * np.uint32(0x846CA68B))
    return word ^ (word >> np.uint32(16))


@element
def centred_low(word: Any) -> Any:
    """A number in (-1/2, 1/2) from the low 16 bits of a word."""
    bits = ((word << np.uint32(7)) & _MANTISSA) | _ONE_AND_HALF_STEP
    return np.int32(bits).view(np.float32) - _CENTRE


@element
def centred_high(word: Any) -> Any:
    """A number in (-1/2, 1/2) from the high 16 bits of a word."""
    bits = ((word >> np.uint32(9)) & _MANTISSA) | _ONE_AND_HALF_STEP
    return np.int32(bits).view(np.float32) - _CENTRE
