"""The family ``log``: levels that grow by a constant factor, tile by tile."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from torch import Tensor

from thinwire.formats import WireFormat
from thinwire.wire.kernels import octaves, scales, tiles
from thinwire.wire.kernels.blocked import BlockedKernel, Work, addresses_of
from thinwire.wire.kernels.compiled import entry
from thinwire.wire.kernels.memory import keep
from thinwire.wire.kernels.percentiles import clip_magnitudes
from thinwire.wire.kernels.stairs import rises_between, steps_of
from thinwire.wire.key import Key
from thinwire.wire.logarithm import LogLevels

__all__ = ["LogKernel"]


class LogKernel(BlockedKernel):
    """The family ``log``."""

    def __init__(self, fmt: WireFormat) -> None:
        super().__init__(fmt)
        levels = LogLevels.of(fmt)
        self._rule = scales.rule_of(levels.rule, levels.reach)
        self._octaves = _octaves_of(fmt, levels)

    def _encoder(self, x: Tensor, out: Tensor, plan: tiles.Plan, key: Key) -> Work:
        levels = self._octaves
        is_stochastic = self.format.is_stochastic
        if is_stochastic:
            levels = levels._replace(key=key.signed_value)
        addresses = x.data_ptr(), out.data_ptr()
        return partial(_encode_tiles, *addresses, plan, self._rule, levels, is_stochastic)

    def _decoder(self, payloads: Sequence[Tensor], out: Tensor, plan: tiles.Plan) -> Work:
        return partial(_decode_tiles, addresses_of(payloads), out.data_ptr(), plan, self._octaves)


def _octaves_of(fmt: WireFormat, levels: LogLevels) -> octaves.Octaves:
    # Levels of an octave have seven bits of mantissa, and their edges one more.
    octave = (*levels.levels[1 : levels.per_octave + 1], 2.0)
    mantissas = [int((level - 1) * 128) for level in octave]
    gaps = np.diff(mantissas)
    return octaves.Octaves(
        place_bits=np.uint8(fmt.bits - 4),
        sign_bit=np.uint8(1 << fmt.bits - 1),
        edges=steps_of(map(sum, pairwise(mantissas))),
        starts=steps_of(2 * mantissa for mantissa in mantissas[1:-1]),
        ones=steps_of([1] * levels.per_octave),
        rises=rises_between(mantissas[:-1]),
        first_gap=np.uint8(gaps[0]),
        gap_rises=rises_between(gaps),
        places=steps_of(range(1, levels.per_octave)),
        key=0,
    )


@entry
def _encode_tiles(
    x: int,
    payload: int,
    plan: tiles.Plan,
    rule: scales.Rule,
    levels: octaves.Octaves,
    is_stochastic: bool,
    first: int,
    last: int,
) -> None:
    tile_blocks = tiles.blocks_per_tile(plan, tiles.ENCODE_TILE_ELEMENTS)
    memory = tiles.scratch_memory(plan, tile_blocks)
    scratch = tiles.scratch_in(memory, plan, tile_blocks)
    block = first
    while block < last:
        tile = tiles.next_tile(plan, block, last, tile_blocks)
        values = tiles.load_values(x, plan, tile, scratch)
        soon, later = tiles.halves_of_next(x, plan, tile)
        steps, finite = scratch.steps[: tile.num_blocks], scratch.finite[: tile.num_blocks]
        scales.magnitudes(values, tile.width, soon, finite)
        clip_magnitudes(values, tiles.num_clipped(plan, tile), scratch.spare, finite)
        scales.scale_magnitudes(finite, rule, steps)
        scales.store_scales(steps, tiles.scales_address(payload, plan, tile), plan.scale_bytes)
        scales.invert(steps, np.float32(1))
        packed = tiles.codes_of(payload, plan, tile)
        codes = tiles.codes_to_fill(packed, plan, tile, scratch)
        if is_stochastic:
            octaves.one_of_two(values, tile, steps, later, levels, codes, scratch.spare)
        else:
            octaves.nearest(values, steps, later, levels, codes, scratch.spare)
        scales.clear_codes(finite, codes)
        tiles.finish_codes(codes, packed, plan, tile)
        block += tile.num_blocks
    keep(memory)


@entry
def _decode_tiles(
    payloads: Any, out: int, plan: tiles.Plan, levels: octaves.Octaves, first: int, last: int
) -> None:
    tile_blocks = tiles.blocks_per_tile(plan, tiles.DECODE_TILE_ELEMENTS)
    memory = tiles.scratch_memory(plan, tile_blocks)
    scratch = tiles.scratch_in(memory, plan, tile_blocks)
    block = first
    while block < last:
        tile = tiles.next_tile(plan, block, last, tile_blocks)
        target = tiles.target_of(out, plan, tile, scratch)
        steps = scratch.steps[: tile.num_blocks]
        for index in range(payloads.size):
            address = tiles.scales_address(payloads[index], plan, tile)
            scales.load_scales(address, plan.scale_bytes, steps)
            packed = tiles.codes_of(payloads[index], plan, tile)
            codes = tiles.load_codes(packed, plan, tile, scratch)
            own = tiles.turn_of(target, index, payloads.size)
            octaves.spread(codes, steps, levels, own, scratch.spare)
        tiles.finish_tile(target, out, plan, tile, scratch, payloads.size > 1)
        block += tile.num_blocks
    tiles.finish_tensor(plan, memory)
