"""The levels of ``+levels``: one pass counts the points of int8, a second one encodes.

Looking a byte up takes a processor half as long as a copy of the float32, and counting one a whole
one: at neighbouring places in four tables, since an equal point may follow at once.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thinwire.formats import WireFormat
from thinwire.wire.kernels import tiles, uniform
from thinwire.wire.kernels.blocked import Work
from thinwire.wire.kernels.compiled import loop, tile_loop
from thinwire.wire.kernels.cpu import UniformKernel
from thinwire.wire.kernels.intervals import best_levels
from thinwire.wire.kernels.threads import over_blocks
from thinwire.wire.kernels.walk import encoder_of
from thinwire.wire.key import Key
from thinwire.wire.levels import nearest_level

__all__ = ["LearnedKernel"]

_NUM_POINTS = 256
_NUM_TABLES = 4


class LearnedKernel(UniformKernel):
    """The family ``int`` with the levels that lose least of a tensor."""

    def __init__(self, fmt: WireFormat) -> None:
        super().__init__(fmt)
        self._levels = self._levels._replace(learned=True)

    def _encoder(self, x: Tensor, out: Tensor, plan: tiles.Plan, key: Key) -> Work:
        del key
        learned = best_levels(self._count_points(x, out, plan), 1 << self.format.bits)
        out.numpy()[: plan.scales_at].view(np.int8)[:] = learned
        numbers = nearest_level(torch.from_numpy(learned)).numpy()
        levels = self._levels._replace(numbers=numbers)
        return partial(uniform.encode, x.data_ptr(), out.data_ptr(), plan, levels)

    def _count_points(self, x: Tensor, out: Tensor, plan: tiles.Plan) -> Any:
        """How often each point occurs, int64; the scales in ``out`` are written by the way."""
        addresses, parts = (x.data_ptr(), out.data_ptr()), []

        def count(first: int, last: int) -> None:
            counts = np.zeros((_NUM_TABLES, _NUM_POINTS), np.int64)
            _count(*addresses, plan, (self._levels, counts), first, last)
            parts.append(counts)

        over_blocks(count, plan.num_blocks, plan.numel)
        counts = np.sum(parts, axis=(0, 1))
        counts[0] = 0  # no point, but the codes of blocks that are not finite
        return counts


@tile_loop
def _count_tile(site: tiles.Site, levels_and_counts: Any) -> None:
    levels, counts = levels_and_counts
    codes = site.scratch.codes[: site.tile.num_blocks * site.tile.width]
    uniform.round_tile(site, levels, codes, False)
    _add_counts(codes, counts)


@loop
def _add_counts(codes: Any, counts: Any) -> None:
    first, second, third, fourth = counts[0], counts[1], counts[2], counts[3]
    for quarter in range(np.uint64(codes.size // _NUM_TABLES)):
        k = quarter * np.uint64(_NUM_TABLES)
        first[codes[k]] += 1
        second[codes[k + np.uint64(1)]] += 1
        third[codes[k + np.uint64(2)]] += 1
        fourth[codes[k + np.uint64(3)]] += 1
    for i in range(codes.size // _NUM_TABLES * _NUM_TABLES, codes.size):
        first[codes[i]] += 1


_count = encoder_of("int_counts", _count_tile)
