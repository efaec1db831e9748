"""The family ``topk``: the largest magnitudes of a tensor, exactly, and where they are.

Of equal magnitudes the first ones are kept, so that the choice is the same everywhere. NaN and Inf
count as larger than every number: they travel first, and the receiver sees them where they were.
Biased, and meant to be used with error feedback (Aji and Heafield, arXiv 1704.05021).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire.formats import SparseLayout
from thinwire.layouts import STRETCH_ELEMENTS
from thinwire.wire.codec import Codec
from thinwire.wire.key import Key
from thinwire.wire.reference.narrow import narrow

__all__ = ["SparseReference"]

_MAGNITUDE = 0x7FFFFFFF


class SparseReference(Codec):
    """Values in float32, positions as a bit mask or a list, whichever is smaller."""

    def _encode(self, x: Tensor, out: Tensor, key: Key) -> None:
        del key
        layout = self.format.sparse_layout(x.numel())
        values = x.float()
        values = values.masked_fill(values.isnan(), math.nan)
        positions = _largest(values, layout.num_kept)
        out[layout.positions_end :].zero_()
        out[: layout.positions_at].view(torch.float32).copy_(values[positions])
        write = _write_mask if layout.is_mask else _write_list
        write(positions, layout, out[layout.positions_at : layout.positions_end])

    def _decode(self, payload: Tensor, out: Tensor) -> None:
        positions, values = self._kept(payload, out.numel())
        out.zero_()
        out[positions] = narrow(values, out.dtype)

    def _decode_sum(self, payloads: Sequence[Tensor], out: Tensor) -> None:
        out.zero_()
        for payload in payloads:
            positions, values = self._kept(payload, out.numel())
            out[positions] += values  # no position occurs twice in one payload

    def _kept(self, payload: Tensor, numel: int) -> tuple[Tensor, Tensor]:
        """Positions, int64 and ascending, and values of what was kept."""
        layout = self.format.sparse_layout(numel)
        read = _read_mask if layout.is_mask else _read_list
        positions = read(payload[layout.positions_at : layout.positions_end], layout)
        return positions, payload[: layout.positions_at].view(torch.float32)


def _largest(values: Tensor, num_kept: int) -> Tensor:
    """The positions of the largest magnitudes, ascending."""
    magnitudes = values.view(torch.int32) & _MAGNITUDE
    threshold = magnitudes.topk(num_kept, sorted=False).values.amin()
    above, equal = magnitudes > threshold, magnitudes == threshold
    first = equal.nonzero().view(-1)[: num_kept - int(above.sum())]
    above[first] = True
    return above.nonzero().view(-1)


def _write_mask(positions: Tensor, layout: SparseLayout, out: Tensor) -> None:
    kept = torch.zeros(layout.mask_bytes * 8, dtype=torch.uint8, device=out.device)
    kept[positions] = 1
    out.copy_((kept.view(-1, 8) << _bits_of(out)).sum(dim=1))


def _read_mask(mask: Tensor, layout: SparseLayout) -> Tensor:
    kept = mask.unsqueeze(1) >> _bits_of(mask) & 1
    return kept.view(-1)[: layout.numel].nonzero().view(-1)


def _bits_of(mask: Tensor) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=mask.device)


def _write_list(positions: Tensor, layout: SparseLayout, out: Tensor) -> None:
    counts, offsets = _list_parts(out, layout)
    counts.copy_((positions // STRETCH_ELEMENTS).bincount(minlength=layout.num_stretches))
    offsets.copy_(positions % STRETCH_ELEMENTS)


def _read_list(part: Tensor, layout: SparseLayout) -> Tensor:
    counts, offsets = _list_parts(part, layout)
    stretches = torch.arange(layout.num_stretches, device=part.device)
    starts = stretches.repeat_interleave(counts.long()) * STRETCH_ELEMENTS
    return starts + (offsets.long() & STRETCH_ELEMENTS - 1)


def _list_parts(part: Tensor, layout: SparseLayout) -> tuple[Tensor, Tensor]:
    """The counts, int32, and the offsets, int16 that stand for 0 to 65535."""
    counts_bytes = 4 * layout.num_stretches
    return part[:counts_bytes].view(torch.int32), part[counts_bytes:].view(torch.int16)
