"""The family ``log``: a sign and levels that grow by a constant factor.

Level 0 is zero; level n is ``scale * ratio**(n - 1)``, where the ratio is a root of two: 2,
2**(1/2), 2**(1/4), 2**(1/8) and 2**(1/16) for log4 to log8. The top level, 64 to 235 scales, is the
block's largest magnitude. So the relative error is bounded down to one scale, and below it the
absolute error is at most half a scale.
"""

from __future__ import annotations

import torch
from torch import Tensor

from thinwire.formats import WireFormat
from thinwire.wire.logarithm import LogLevels
from thinwire.wire.reference.blocked import BlockedReference, EncodedRows, RandomRows
from thinwire.wire.reference.extremes import magnitudes_of
from thinwire.wire.scales import divided, inverse_of

__all__ = ["LogReference"]


class LogReference(BlockedReference):
    """Nearest level, or with ``+stochastic`` one of the two neighbours, by distance."""

    def __init__(self, fmt: WireFormat) -> None:
        super().__init__(fmt)
        self._levels = LogLevels.of(fmt)

    def _encode_rows(self, values: Tensor, random: RandomRows, head: Tensor) -> EncodedRows:
        del head
        magnitudes = magnitudes_of(values, self.format)
        finite = magnitudes.isfinite()
        scales = self._levels.rule.round(divided(magnitudes, self._levels.reach), finite)
        units = values.abs() * inverse_of(scales).unsqueeze(1)
        edges = torch.tensor(self._levels.edges, device=values.device)
        if "stochastic" in self.format.options:
            units = self._one_of_two(units, random)
        codes = torch.searchsorted(edges, units, right=True).to(torch.uint8)
        codes |= ((codes > 0) & values.signbit()).to(torch.uint8) << self.format.bits - 1
        codes = codes.masked_fill(scales.isnan().unsqueeze(1), 0)
        return EncodedRows(codes=codes, scales=scales)

    def _decode_rows(self, rows: EncodedRows, head: Tensor) -> Tensor:
        del head
        table = torch.tensor(self._levels.signed, device=rows.codes.device)
        return table[rows.codes.int()] * rows.scales.unsqueeze(1)

    def _one_of_two(self, units: Tensor, random: RandomRows) -> Tensor:
        """A level next to each value, so that the expectation is the value."""
        levels = torch.tensor(self._levels.levels, device=units.device)
        below = torch.searchsorted(levels, units, right=True) - 1
        low = levels[below]
        high = levels[(below + 1).clamp(max=levels.numel() - 1)]
        goes_up = units - low > (random.centred(units) + 0.5) * (high - low)
        return high.where(goes_up, low)
