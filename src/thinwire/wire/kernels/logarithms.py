"""The family ``log``: levels that grow by a constant factor, tile by tile."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from torch import Tensor

from thinwire.formats import WireFormat
from thinwire.wire.kernels import octaves, scales, tiles
from thinwire.wire.kernels.blocked import BlockedKernel, Work, addresses_of
from thinwire.wire.kernels.compiled import tile_loop
from thinwire.wire.kernels.scaling import scale_tile
from thinwire.wire.kernels.stairs import rises_between, steps_of
from thinwire.wire.kernels.walk import decoder_of, encoder_of
from thinwire.wire.key import Key
from thinwire.wire.logarithm import LogLevels

__all__ = ["LogKernel"]


class _Levels(NamedTuple):
    """All that the loops know of a format.

    Attributes:
        rule: how scales are rounded.
        octaves: the levels.
        is_stochastic: rounding is random.
    """

    rule: scales.Rule
    octaves: octaves.Octaves
    is_stochastic: bool


class LogKernel(BlockedKernel):
    """The family ``log``."""

    def __init__(self, fmt: WireFormat) -> None:
        super().__init__(fmt)
        levels = LogLevels.of(fmt)
        rule = scales.rule_of(levels.rule, levels.reach)
        self._levels = _Levels(rule, _octaves_of(fmt, levels), fmt.is_stochastic)

    def _encoder(self, x: Tensor, out: Tensor, plan: tiles.Plan, key: Key) -> Work:
        levels = self._levels
        if levels.is_stochastic:
            levels = levels._replace(octaves=levels.octaves._replace(key=key.signed_value))
        return partial(_encode, x.data_ptr(), out.data_ptr(), plan, levels)

    def _decoder(self, payloads: Sequence[Tensor], out: Tensor, plan: tiles.Plan) -> Work:
        return partial(_decode, addresses_of(payloads), out.data_ptr(), plan, self._levels)


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


@tile_loop
def _encode_tile(site: tiles.Site, levels: _Levels) -> None:
    values, (soon, later) = tiles.load_values(site), tiles.halves_of_next(site)
    steps, finite = scale_tile(site, values, levels.rule, soon)
    codes = tiles.codes_to_fill(site)
    if levels.is_stochastic:
        spare = site.scratch.spare
        octaves.one_of_two(values, site.tile, steps, later, levels.octaves, codes, spare)
    else:
        octaves.nearest(values, steps, later, levels.octaves, codes, site.scratch.spare)
    scales.clear_codes(finite, codes)
    tiles.finish_codes(codes, site)


@tile_loop
def _decode_tile(site: tiles.Site, levels: _Levels, target: tiles.Target) -> None:
    steps = site.scratch.steps[: site.tile.num_blocks]
    scales.load_scales(tiles.scales_address(site), site.plan.scale_bytes, steps)
    octaves.spread(tiles.load_codes(site), steps, levels.octaves, target, site.scratch.spare)


_encode, _decode = encoder_of("log", _encode_tile), decoder_of("log", _decode_tile)
