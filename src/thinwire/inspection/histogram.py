"""How the values of a tensor are spread, before a format and after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from thinwire.formats import WireFormat
from thinwire.inspection.distortion import carry
from thinwire.inspection.profile import Profile, pieces

__all__ = ["Histogram", "spread"]

NUM_BINS = 121  # odd: zero lies in the middle of a bin
# The reach is in units of the root mean square, so that layers of any size look alike. A normal
# distribution has six elements in ten million beyond 5.
MAX_REACH = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Counts of one tensor, before and after one format.

    Attributes:
        layer: the tensor's name.
        format: the format.
        rms: root mean square of the tensor: the unit of ``reach``.
        reach: the bins divide ``-reach * rms .. reach * rms`` evenly. What lies beyond is counted
            in the first and the last.
        before: elements of the tensor per bin.
        after: elements of what arrives per bin.
    """

    layer: str
    format: WireFormat
    rms: float
    reach: float
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def centres(self) -> tuple[float, ...]:
        """The middle of every bin, in units of the root mean square."""
        width = 2 * self.reach / NUM_BINS
        return tuple(-self.reach + width * (index + 0.5) for index in range(NUM_BINS))

    def to_json(self) -> dict[str, Any]:
        """The histogram in the JSON document."""
        return {
            "layer": self.layer,
            "format": str(self.format),
            "rms": self.rms,
            "from": -self.reach * self.rms,
            "to": self.reach * self.rms,
            "before": list(self.before),
            "after": list(self.after),
        }


def spread(values: Tensor, fmt: WireFormat, name: str, before: Profile) -> Histogram:
    """Count the values of a tensor and of what arrives; arguments as for `distort`."""
    rms = before.rms or 1.0  # all zeros: any unit shows them
    reach = min(max(before.largest / rms, 1.0), MAX_REACH)
    return Histogram(
        layer=name,
        format=fmt,
        rms=rms,
        reach=reach,
        before=_counts(values, rms, reach),
        after=_counts(carry(values, fmt, name), rms, reach),
    )


def _counts(values: Tensor, rms: float, reach: float) -> tuple[int, ...]:
    counts = torch.zeros(NUM_BINS, dtype=torch.float64)
    for piece in pieces(values):
        piece.div_(rms).clamp_(-reach, reach)
        counts += torch.histc(piece, NUM_BINS, -reach, reach)
    return tuple(int(count) for count in counts)
