"""The walk over the tiles of a tensor and its payload, for every family that has blocks.

A family says what it does to one tile. Its loops become part of the machine code of the walk:
functions that are passed when a walk is called would not, and could not be kept in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thinwire.wire.kernels import tiles
from thinwire.wire.kernels.compiled import entry
from thinwire.wire.kernels.memory import keep
from thinwire.wire.kernels.tiles import Plan, Site

__all__ = ["decoder_of", "encoder_of"]


def encoder_of(
    name: str,
    encode_tile: Callable[[Site, Any], None],
    tile_elements: int = tiles.ENCODE_TILE_ELEMENTS,
) -> Callable[[int, int, Plan, Any, int, int], None]:
    """A compiled ``encode(x, payload, plan, levels, first, last)`` of blocks ``first`` to ``last``.

    Args:
        name: of the family, unlike all others.
        encode_tile: a `tile_loop` that encodes the tile at a site, given the family's ``levels``.
        tile_elements: how many elements make a tile.
    """

    def encode(x: int, payload: int, plan: Plan, levels: Any, first: int, last: int) -> None:
        tile_blocks = tiles.blocks_per_tile(plan, tile_elements)
        memory = tiles.scratch_memory(plan, tile_blocks)
        scratch = tiles.scratch_in(memory, plan, tile_blocks)
        block = first
        while block < last:
            tile = tiles.next_tile(plan, block, last, tile_blocks)
            encode_tile(Site(x, payload, plan, tile, scratch), levels)
            block += tile.num_blocks
        keep(memory)

    return entry(encode, name=f"encode_{name}")


def decoder_of(
    name: str, decode_tile: Callable[[Site, Any, tiles.Target], None]
) -> Callable[[Any, int, Plan, Any, int, int], None]:
    """A compiled ``decode(payloads, out, plan, levels, first, last)``.

    It takes the addresses of payloads, int64, whose values are summed in this order, and the
    address of a flat tensor; float32 when there are several payloads.

    Args:
        name: of the family, unlike all others.
        decode_tile: a `tile_loop` that decodes the payload at a site into a target.
    """

    def decode(payloads: Any, out: int, plan: Plan, levels: Any, first: int, last: int) -> None:
        tile_blocks = tiles.blocks_per_tile(plan, tiles.DECODE_TILE_ELEMENTS)
        memory = tiles.scratch_memory(plan, tile_blocks)
        scratch = tiles.scratch_in(memory, plan, tile_blocks)
        block = first
        while block < last:
            tile = tiles.next_tile(plan, block, last, tile_blocks)
            target = tiles.target_of(Site(out, 0, plan, tile, scratch))
            for index in range(payloads.size):
                site = Site(out, payloads[index], plan, tile, scratch)
                decode_tile(site, levels, tiles.turn_of(target, index, payloads.size))
            tiles.finish_tile(target, Site(out, 0, plan, tile, scratch), payloads.size > 1)
            block += tile.num_blocks
        tiles.finish_tensor(plan, memory)

    return entry(decode, name=f"decode_{name}")
