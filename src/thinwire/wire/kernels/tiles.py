"""How a payload is walked: a tile is as many blocks as stay in a near cache.

Indices inside a tile are unsigned. Numba then knows that they do not count from the end, and leaves
out a comparison per block that costs more than the arithmetic of small blocks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from thinwire.wire.kernels.compiled import element, loop
from thinwire.wire.kernels.halves import FLOAT32, narrow, widen
from thinwire.wire.kernels.memory import bytes_at, floats_at, halves_at, keep, words_at
from thinwire.wire.kernels.planes import pack, unpack
from thinwire.wire.kernels.rotation import rotate
from thinwire.wire.kernels.streaming import LINE_BYTES, settle, stream
from thinwire.wire.scales import FLOAT32_MAX

__all__ = [
    "DECODE_TILE_ELEMENTS",
    "ENCODE_TILE_ELEMENTS",
    "Plan",
    "Scratch",
    "Site",
    "Target",
    "Tile",
    "ahead_of",
    "blocks_per_tile",
    "codes_address",
    "codes_of",
    "codes_to_fill",
    "element_bytes",
    "finish_block",
    "finish_codes",
    "finish_tensor",
    "finish_tile",
    "halves_of_next",
    "load_codes",
    "load_values",
    "next_tile",
    "num_clipped",
    "padded",
    "part_of",
    "scales_address",
    "scratch_in",
    "scratch_memory",
    "target_of",
    "turn_of",
    "values_address",
    "zeros_address",
]

# Families that encode in two passes have the next tile on its way: 64 KiB of float32 each, and the
# codes, fit a second-level cache. Decoding touches a tile once per payload; to begin one costs as
# much as a thousand elements, so that small ones, which fit the first cache, are slower.
ENCODE_TILE_ELEMENTS = 1 << 14
DECODE_TILE_ELEMENTS = 1 << 15

# Memory answers within the time of thirty-two blocks of 128 values: what is asked for later is
# late, and what is asked for earlier pushes out what is in use.
_AHEAD_BYTES = 1 << 14

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
        streams: the tensor is larger than the caches, and is written past them.
        num_blocks: blocks, the ragged one included.
        block_bytes: bytes of the codes of a full block.
        scale_bytes: bytes of a scale, and of a zero point.
        clipped, clipped_last: elements beyond the percentile of a full block, of the ragged one.
        scales_at, zeros_at, codes_at, codes_end: as in `thinwire.formats.Layout`.
    """

    numel: int
    block: int
    kind: int
    bits: int
    rotates: bool
    streams: bool
    num_blocks: int
    block_bytes: int
    scale_bytes: int
    clipped: int
    clipped_last: int
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
        spare: uint8, four for each element, for what lies between two loops.
        steps: float32, the scale of each block.
        zeros: float32, the zero point of each block; 0 where there is none.
        finite: int32, float bits of the magnitude of each block.
        inverses: float32, what the values of each block are multiplied with.
        codes: uint8, one code a byte.
    """

    values: Any
    spare: Any
    steps: Any
    zeros: Any
    finite: Any
    inverses: Any
    codes: Any


class Site(NamedTuple):
    """Where a family works on a tile.

    Attributes:
        tensor: address of the tensor.
        payload: address of the payload.
        plan: where things lie in both.
        tile: which blocks.
        scratch: memory.
    """

    tensor: int
    payload: int
    plan: Plan
    tile: Tile
    scratch: Scratch


class Target(NamedTuple):
    """Where the values of a tile go as they are decoded.

    Attributes:
        values: float32, block after block.
        width: elements of a block.
        adds: there is a sum already that they are added to.
        address: where each block is streamed to as soon as it is complete; 0 for nowhere.
    """

    values: Any
    width: int
    adds: bool
    address: int


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


@element
def element_bytes(plan: Plan) -> int:
    """Bytes of one element of the tensor."""
    return 4 if plan.kind == FLOAT32 else 2


@loop
def padded(width: int) -> int:
    """Bytes that the codes of a block take in scratch memory: one each, a multiple of 8."""
    return (width + 7) // 8 * 8


@element
def values_address(site: Site) -> int:
    """Where the elements of a tile begin."""
    return site.tensor + site.tile.block * site.plan.block * element_bytes(site.plan)


@loop
def scales_address(site: Site) -> int:
    """Where the scales of a tile begin."""
    return site.payload + site.plan.scales_at + site.tile.block * site.plan.scale_bytes


@loop
def zeros_address(site: Site) -> int:
    """Where the zero points of a tile begin."""
    return site.payload + site.plan.zeros_at + site.tile.block * site.plan.scale_bytes


@element
def num_clipped(site: Site) -> int:
    """How many elements of each block of a tile lie beyond the percentile."""
    is_full = site.tile.width == site.plan.block
    return site.plan.clipped if is_full else site.plan.clipped_last


@loop
def codes_address(site: Site) -> int:
    """Where the packed codes of a tile begin."""
    return site.payload + site.plan.codes_at + site.tile.block * site.plan.block_bytes


@loop
def codes_of(site: Site) -> Any:
    """The packed codes of a tile."""
    address = codes_address(site)
    left = site.payload + site.plan.codes_end - address
    return bytes_at(address, min(site.tile.num_blocks * site.plan.block_bytes, left))


@element
def part_of(site: Site, first: int, last: int) -> Site:
    """The site of blocks ``first`` to ``last`` of a tile."""
    tile = Tile(site.tile.block + first, last - first, site.tile.width)
    return Site(site.tensor, site.payload, site.plan, tile, site.scratch)


@element
def ahead_of(site: Site) -> Any:
    """The bytes to prefetch while a few blocks are encoded: as many as they have, further on."""
    size = site.tile.num_blocks * site.tile.width * element_bytes(site.plan)
    return bytes_at(values_address(site) + _AHEAD_BYTES, size)


@loop
def halves_of_next(site: Site) -> Any:
    """The bytes of the next tile in two halves, one for each pass over this one to prefetch."""
    size = site.tile.num_blocks * site.tile.width * element_bytes(site.plan) // 2
    address = values_address(site) + 2 * size
    return bytes_at(address, size), bytes_at(address + size, size)


@loop
def codes_to_fill(site: Site) -> Any:
    """Where to put codes of one byte each: into the payload when codes have 8 bits, or scratch."""
    if site.plan.bits == 8:
        return codes_of(site)
    codes = site.scratch.codes[: site.tile.num_blocks * padded(site.tile.width)]
    codes[site.tile.num_blocks * site.tile.width :] = 0
    return codes


@loop
def finish_codes(codes: Any, site: Site) -> None:
    """Pack the codes of a tile into the payload, unless they are there."""
    if site.plan.bits != 8:
        width = site.tile.width
        pack(codes, padded(width), width, site.plan.bits, codes_of(site))


@loop
def load_codes(site: Site) -> Any:
    """The codes of a tile, one byte each."""
    packed, stride = codes_of(site), padded(site.tile.width)
    if site.plan.bits == 8:
        return packed
    codes = site.scratch.codes[: site.tile.num_blocks * stride]
    unpack(packed, stride, site.tile.width, site.plan.bits, codes)
    return codes


@loop
def scratch_memory(plan: Plan, tile_blocks: int) -> Any:
    """Memory for `scratch_in`."""
    return np.empty(tile_blocks * (9 * plan.block + 16), np.uint8)


@loop
def scratch_in(memory: Any, plan: Plan, tile_blocks: int) -> Scratch:
    """Scratch for one tile in ``memory``, for which the caller calls `keep` at the end."""
    size, address = tile_blocks * plan.block, memory.ctypes.data
    scratch = Scratch(
        floats_at(address, size),
        bytes_at(address + 4 * size, 4 * size),
        floats_at(address + 8 * size, tile_blocks),
        floats_at(address + 8 * size + 4 * tile_blocks, tile_blocks),
        words_at(address + 8 * size + 8 * tile_blocks, tile_blocks),
        floats_at(address + 8 * size + 12 * tile_blocks, tile_blocks),
        bytes_at(address + 8 * size + 16 * tile_blocks, size),
    )
    scratch.zeros[:] = 0
    return scratch


@element
def load_values(site: Site) -> Any:
    """The float32 values of a tile as they are encoded.

    They lie in the tensor's own memory, or widened and rotated in scratch memory.
    """
    plan, tile, scratch = site.plan, site.tile, site.scratch
    address, size = values_address(site), tile.num_blocks * tile.width
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
def target_of(site: Site) -> Target:
    """Where to put the float32 values of a tile: into the tensor, or into scratch memory."""
    plan, tile, scratch = site.plan, site.tile, site.scratch
    address, size = values_address(site), tile.num_blocks * tile.width
    if plan.kind == FLOAT32 and not plan.streams:
        return Target(floats_at(address, size), tile.width, False, 0)
    # Whole cache lines can follow block by block, unless there is more to do with the values.
    in_lines = address % LINE_BYTES == 0 and 4 * tile.width % LINE_BYTES == 0
    follows = in_lines and plan.kind == FLOAT32 and not plan.rotates
    return Target(scratch.values[:size], tile.width, False, address if follows else 0)


@loop
def turn_of(target: Target, index: int, num_payloads: int) -> Target:
    """The target for one of several payloads: blocks are complete with the last one."""
    address = target.address if index == num_payloads - 1 else 0
    return Target(target.values, target.width, index > 0, address)


@loop
def finish_block(target: Target, block: int) -> None:
    """Call this when the values of a block are complete: they are still in a register's reach."""
    if target.address:
        start, size = 4 * block * target.width, 4 * target.width
        stream(target.values.ctypes.data + start, target.address + start, size)


@loop
def finish_tile(target: Target, site: Site, is_sum: bool) -> None:
    """Turn decoded values into those of the tensor: rotate back, narrow, stream."""
    plan, tile, scratch = site.plan, site.tile, site.scratch
    values, address = target.values, values_address(site)
    if plan.rotates:
        rotate(values, values, tile.width, _ONE, _EIGHT)
        if not is_sum:  # a value that was finite stays so; a sum may overflow like any other
            _keep_finite(values)
    if plan.kind == FLOAT32:
        if plan.streams and not target.address:
            stream(values.ctypes.data, address, 4 * values.size)
    elif plan.streams:
        halves = halves_at(scratch.spare.ctypes.data, values.size)
        narrow(values, plan.kind, halves)
        stream(halves.ctypes.data, address, 2 * values.size)
    else:
        narrow(values, plan.kind, halves_at(address, values.size))


@loop
def finish_tensor(plan: Plan, memory: Any) -> None:
    """Call this after the last tile of a range of blocks, with the memory of its scratch."""
    if plan.streams:
        settle()
    keep(memory)


@loop
def _keep_finite(values: Any) -> None:
    for i in range(values.size):
        value = values[i]
        value = _LARGEST if value > _LARGEST else value
        values[i] = -_LARGEST if value < -_LARGEST else value
