"""Scales of a tile from the largest magnitudes of its blocks: most families have such."""

from __future__ import annotations

from typing import Any

import numpy as np

from thinwire.wire.kernels import scales, tiles
from thinwire.wire.kernels.compiled import tile_loop
from thinwire.wire.kernels.percentiles import clip_magnitudes

__all__ = ["scale_tile"]


@tile_loop
def scale_tile(site: tiles.Site, values: Any, rule: scales.Rule, ahead: Any) -> Any:
    """Write the scales of a tile into the payload; prefetches ``ahead``.

    Returns:
        What to multiply each block with, float32, and its magnitude as float bits, int32. Both lie
        in scratch memory.
    """
    num_blocks, address = site.tile.num_blocks, tiles.scales_address(site)
    steps, finite = site.scratch.steps[:num_blocks], site.scratch.finite[:num_blocks]
    scales.magnitudes(values, site.tile.width, ahead, finite)
    clip_magnitudes(values, tiles.num_clipped(site), site.scratch.spare, finite)
    scales.scale_magnitudes(finite, rule, steps)
    scales.store_scales(steps, address, site.plan.scale_bytes)
    scales.invert(steps, np.float32(1))
    return steps, finite
