"""How a payload is walked: a tile is as many blocks as stay in a near cache.

Indices inside a tile are unsigned. Numba then knows that they do not count from the end, and leaves
out a comparison per block that costs more than the arithmetic of small blocks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from thinwire.wire.kernels.compiled import loop
from thinwire.wire.kernels.halves import FLOAT32, narrow, widen
from thinwire.wire.kernels.rotation import rotate
from thinwire.wire.scales import FLOAT32_MAX

__all__ = [
    "DECODE_TILE_ELEMENTS",
    "ENCODE_TILE_ELEMENTS",
    "Plan",
    "Tile",
    "blocks_per_tile",
    "codes_of",
    "element_bytes",
    "finish_values",
    "load_values",
    "next_tile",
    "padded",
    "scales_of",
    "values_scratch",
    "values_to_fill",
    "zeros_of",
]

# Encoding reads a tile twice and has the next one on its way: 128 KiB of float32 each, and the
# codes, fit a second-level cache. Decoding touches a tile once per payload: 16 KiB fit the first.
ENCODE_TILE_ELEMENTS = 1 << 15
DECODE_TILE_ELEMENTS = 1 << 12

_ONE, _EIGHT, _EIGHTH = np.float32(1), np.float32(8), np.float32(0.125)
_LARGEST = np.float32(FLOAT32_MAX)


class Plan(NamedTuple):
    """Where things lie in a tensor and its payload: elements for the first two, else bytes.

    Attributes:
        numel: elements of the tensor.
        block: elements of a full block.
        kind: how the tensor's elements are stored: FLOAT32, BFLOAT16 or FLOAT16.
        bits: bits of a code.
        rotates: what is encoded are rotated values.
        num_blocks: blocks, the ragged one included.
        block_bytes: bytes of the codes of a full block.
        scales_at, zeros_at, codes_at, codes_end: as in `thinwire.formats.Layout`.
    """

    numel: int
    block: int
    kind: int
    bits: int
    rotates: bool
    num_blocks: int
    block_bytes: int
    scales_at: int
    zeros_at: int
    codes_at: int
    codes_end: int


class Tile(NamedTuple):
    """``num_blocks`` blocks of ``width`` elements each, the first of them number ``block``."""

    block: int
    num_blocks: int
    width: int


@loop
def blocks_per_tile(plan: Plan, tile_elements: int) -> int:
    """How many full blocks make a tile."""
    return max(1, tile_elements // plan.block)


@loop
def next_tile(plan: Plan, block: int, last: int, tile_blocks: int) -> Tile:
    """The tile that begins at ``block``. A ragged block is a tile of its own."""
    full = plan.numel // plan.block
    if block < full:
        return Tile(block, min(tile_blocks, min(last, full) - block), plan.block)
    return Tile(block, 1, plan.numel - block * plan.block)


@loop
def element_bytes(plan: Plan) -> int:
    """Bytes of one element of the tensor."""
    return 4 if plan.kind == FLOAT32 else 2


@loop
def padded(width: int) -> int:
    """Bytes that the codes of a block take in scratch memory: one each, a multiple of 8."""
    return (width + 7) // 8 * 8


@loop
def values_scratch(plan: Plan, tile_blocks: int) -> Any:
    """Memory for the values of one tile, where the tensor's own does not do."""
    needed = plan.rotates or plan.kind != FLOAT32
    return np.empty(tile_blocks * plan.block if needed else 0, np.float32)


@loop
def load_values(stored: Any, plan: Plan, tile: Tile, scratch: Any) -> Any:
    """The float32 values of a tile as they are encoded, from the bytes of the tensor.

    They lie in the tensor's own memory, or in ``scratch``, widened and rotated.
    """
    if plan.kind == FLOAT32 and not plan.rotates:
        return stored.view(np.float32)
    values = scratch[: tile.num_blocks * tile.width]
    if plan.kind != FLOAT32:
        widen(stored.view(np.uint16), plan.kind, values)
        if plan.rotates:
            rotate(values, values, tile.width, _EIGHTH, _ONE)
    else:
        rotate(stored.view(np.float32), values, tile.width, _EIGHTH, _ONE)
    return values


@loop
def values_to_fill(target: Any, plan: Plan, tile: Tile, scratch: Any) -> Any:
    """Where to put the float32 values of a tile whose bytes in the tensor are ``target``."""
    if plan.kind == FLOAT32:
        return target.view(np.float32)
    return scratch[: tile.num_blocks * tile.width]


@loop
def finish_values(values: Any, target: Any, plan: Plan, tile: Tile, is_sum: bool) -> None:
    """Turn decoded values into those of the tensor: rotate back, narrow."""
    if plan.rotates:
        rotate(values, values, tile.width, _ONE, _EIGHT)
        if not is_sum:  # a value that was finite stays so; a sum may overflow like any other
            _keep_finite(values)
    if plan.kind != FLOAT32:
        narrow(values, plan.kind, target.view(np.uint16))


@loop
def _keep_finite(values: Any) -> None:
    for i in range(values.size):
        value = values[i]
        value = _LARGEST if value > _LARGEST else value
        values[i] = -_LARGEST if value < -_LARGEST else value


@loop
def codes_of(payload: Any, plan: Plan, tile: Tile) -> Any:
    """The packed codes of a tile."""
    start = plan.codes_at + tile.block * plan.block_bytes
    return payload[start : min(start + tile.num_blocks * plan.block_bytes, plan.codes_end)]


@loop
def scales_of(payload: Any, plan: Plan) -> Any:
    """The section that holds the scales of all blocks."""
    return payload[plan.scales_at : plan.zeros_at]


@loop
def zeros_of(payload: Any, plan: Plan) -> Any:
    """The section that holds the zero points of all blocks."""
    return payload[plan.zeros_at : plan.codes_at]
