"""How a payload is walked: a tile is as many blocks as stay in a near cache.

Indices inside a tile are unsigned. Numba then knows that they do not count from the end, and leaves
out a comparison per block that costs more than the arithmetic of small blocks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from thinwire.wire.kernels.compiled import loop
from thinwire.wire.kernels.halves import FLOAT32, narrow, widen
from thinwire.wire.kernels.memory import bytes_at, floats_at, halves_at, words_at
from thinwire.wire.kernels.rotation import rotate
from thinwire.wire.scales import FLOAT32_MAX

__all__ = [
    "DECODE_TILE_ELEMENTS",
    "ENCODE_TILE_ELEMENTS",
    "Plan",
    "Scratch",
    "Tile",
    "blocks_per_tile",
    "codes_address",
    "codes_of",
    "element_bytes",
    "finish_values",
    "load_values",
    "next_tile",
    "padded",
    "scales_address",
    "scratch_in",
    "scratch_memory",
    "values_address",
    "values_to_fill",
    "zeros_address",
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
        scale_bytes: bytes of a scale, and of a zero point.
        scales_at, zeros_at, codes_at, codes_end: as in `thinwire.formats.Layout`.
    """

    numel: int
    block: int
    kind: int
    bits: int
    rotates: bool
    num_blocks: int
    block_bytes: int
    scale_bytes: int
    scales_at: int
    zeros_at: int
    codes_at: int
    codes_end: int


class Tile(NamedTuple):
    """``num_blocks`` blocks of ``width`` elements each, the first of them number ``block``."""

    block: int
    num_blocks: int
    width: int


class Scratch(NamedTuple):
    """Memory for one tile, taken once per call.

    Attributes:
        values: float32, where the tensor's own memory does not do.
        steps: float32, the scale of each block.
        zeros: float32, the zero point of each block; 0 where there is none.
        finite: int32, float bits of the magnitude of each block.
        codes: uint8, one code a byte.
    """

    values: Any
    steps: Any
    zeros: Any
    finite: Any
    codes: Any


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
def values_address(tensor: int, plan: Plan, tile: Tile) -> int:
    """Where the elements of a tile begin, in a tensor that begins at ``tensor``."""
    return tensor + tile.block * plan.block * element_bytes(plan)


@loop
def scales_address(payload: int, plan: Plan, tile: Tile) -> int:
    """Where the scales of a tile begin, in a payload that begins at ``payload``."""
    return payload + plan.scales_at + tile.block * plan.scale_bytes


@loop
def zeros_address(payload: int, plan: Plan, tile: Tile) -> int:
    """Where the zero points of a tile begin."""
    return payload + plan.zeros_at + tile.block * plan.scale_bytes


@loop
def codes_address(payload: int, plan: Plan, tile: Tile) -> int:
    """Where the packed codes of a tile begin."""
    return payload + plan.codes_at + tile.block * plan.block_bytes


@loop
def codes_of(payload: int, plan: Plan, tile: Tile) -> Any:
    """The packed codes of a tile."""
    address = codes_address(payload, plan, tile)
    left = payload + plan.codes_end - address
    return bytes_at(address, min(tile.num_blocks * plan.block_bytes, left))


@loop
def scratch_memory(plan: Plan, tile_blocks: int) -> Any:
    """Memory for `scratch_in`."""
    return np.empty(tile_blocks * (5 * plan.block + 12), np.uint8)


@loop
def scratch_in(memory: Any, plan: Plan, tile_blocks: int) -> Scratch:
    """Scratch for one tile in ``memory``, for which the caller calls `keep` at the end."""
    size, address = tile_blocks * plan.block, memory.ctypes.data
    scratch = Scratch(
        floats_at(address, size),
        floats_at(address + 4 * size, tile_blocks),
        floats_at(address + 4 * (size + tile_blocks), tile_blocks),
        words_at(address + 4 * (size + 2 * tile_blocks), tile_blocks),
        bytes_at(address + 4 * (size + 3 * tile_blocks), size),
    )
    scratch.zeros[:] = 0
    return scratch


@loop
def load_values(tensor: int, plan: Plan, tile: Tile, scratch: Scratch) -> Any:
    """The float32 values of a tile as they are encoded.

    They lie in the tensor's own memory, or widened and rotated in ``scratch``.
    """
    address, size = values_address(tensor, plan, tile), tile.num_blocks * tile.width
    if plan.kind == FLOAT32 and not plan.rotates:
        return floats_at(address, size)
    values = scratch.values[:size]
    if plan.kind != FLOAT32:
        widen(halves_at(address, size), plan.kind, values)
        if plan.rotates:
            rotate(values, values, tile.width, _EIGHTH, _ONE)
    else:
        rotate(floats_at(address, size), values, tile.width, _EIGHTH, _ONE)
    return values


@loop
def values_to_fill(tensor: int, plan: Plan, tile: Tile, scratch: Scratch) -> Any:
    """Where to put the float32 values of a tile: into the tensor, or ``scratch`` for 16 bits."""
    size = tile.num_blocks * tile.width
    if plan.kind == FLOAT32:
        return floats_at(values_address(tensor, plan, tile), size)
    return scratch.values[:size]


@loop
def finish_values(values: Any, tensor: int, plan: Plan, tile: Tile, is_sum: bool) -> None:
    """Turn decoded values into those of the tensor: rotate back, narrow."""
    if plan.rotates:
        rotate(values, values, tile.width, _ONE, _EIGHT)
        if not is_sum:  # a value that was finite stays so; a sum may overflow like any other
            _keep_finite(values)
    if plan.kind != FLOAT32:
        narrow(values, plan.kind, halves_at(values_address(tensor, plan, tile), values.size))


@loop
def _keep_finite(values: Any) -> None:
    for i in range(values.size):
        value = values[i]
        value = _LARGEST if value > _LARGEST else value
        values[i] = -_LARGEST if value < -_LARGEST else value
