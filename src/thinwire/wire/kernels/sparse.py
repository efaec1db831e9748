"""The family ``topk``: a pass that writes what reaches the threshold, one that spreads it again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from thinwire.formats import SparseLayout
from thinwire.layouts import STRETCH_ELEMENTS
from thinwire.wire.codec import Codec
from thinwire.wire.kernels.compiled import entry, loop
from thinwire.wire.kernels.largest import (
    CHUNK_ELEMENTS,
    STRIP_ELEMENTS,
    Source,
    magnitude,
    next_hit,
    reaching,
    strip_bits,
    threshold_of,
)
from thinwire.wire.kernels.memory import keep
from thinwire.wire.kernels.plans import kind_of
from thinwire.wire.kernels.scales import NAN
from thinwire.wire.key import Key
from thinwire.wire.reference.narrow import narrow_into
from thinwire.wire.reference.sparse import damaged

__all__ = ["SparseKernel"]

_NO_COUNTS, _NO_OFFSETS = np.empty(0, np.int32), np.empty(0, np.uint16)
_NO_MASK = np.empty(0, np.uint8)


class _Parts(NamedTuple):
    """A payload as arrays. Of a list, ``mask`` is empty; of a mask, ``counts`` and ``offsets``.

    Attributes:
        numbers: float32, the values.
        counts: int32, by stretch.
        offsets: uint16, positions from the start of their stretch.
        mask: uint8.
    """

    numbers: Any
    counts: Any
    offsets: Any
    mask: Any


class SparseKernel(Codec):
    """The family ``topk``."""

    def _encode(self, x: Tensor, out: Tensor, key: Key) -> None:
        del key
        layout = self.format.sparse_layout(x.numel())
        payload = out.numpy()
        payload[layout.positions_at :] = 0
        source = Source(x.data_ptr(), x.numel(), kind_of(x))
        threshold, ties = threshold_of(source, layout.num_kept)
        _write(source, threshold, ties, _parts_of(payload, layout))

    def _decode(self, payload: Tensor, out: Tensor) -> None:
        out.zero_()
        self._spread(payload, out, add=False)

    def _decode_sum(self, payloads: Sequence[Tensor], out: Tensor) -> None:
        out.zero_()
        for payload in payloads:
            self._spread(payload, out, add=True)

    def _spread(self, payload: Tensor, out: Tensor, *, add: bool) -> None:
        layout = self.format.sparse_layout(out.numel())
        parts = _parts_of(payload.numpy(), layout)
        if out.dtype != torch.float32:  # only bits are moved, which NumPy knows as integers
            numbers = torch.empty(layout.num_kept, dtype=out.dtype)
            narrow_into(torch.from_numpy(parts.numbers), numbers)
            parts = parts._replace(numbers=numbers.view(torch.int16).numpy())
            out = out.view(torch.int16)
        spread = _spread_mask if layout.is_mask else _spread_list
        is_whole = spread(parts, out.detach().numpy(), add)
        if not is_whole:
            raise damaged(self.format)


def _parts_of(payload: Any, layout: SparseLayout) -> _Parts:
    numbers = payload[: layout.positions_at].view(np.float32)
    positions = payload[layout.positions_at : layout.positions_end]
    if layout.is_mask:
        return _Parts(numbers, _NO_COUNTS, _NO_OFFSETS, positions)
    counts_bytes = 4 * layout.num_stretches
    counts, offsets = positions[:counts_bytes], positions[counts_bytes:]
    return _Parts(numbers, counts.view(np.int32), offsets.view(np.uint16), _NO_MASK)


@entry
def _write(x: Source, threshold: Any, ties: int, parts: _Parts) -> None:
    """What is kept, in the order of positions; counts and mask are zero before.

    Args:
        x: the tensor.
        threshold: int32, float bits of the smallest magnitude that is kept.
        ties: how many equal to it are kept: the first ones.
        parts: of the payload.
    """
    scratch = np.empty(STRIP_ELEMENTS, np.float32)
    values = parts.numbers.view(np.int32)
    kept = 0
    for start in range(0, x.numel, STRIP_ELEMENTS):
        size = min(STRIP_ELEMENTS, x.numel - start)
        bits = strip_bits(x, start, size, scratch.ctypes.data)
        for chunk in range(0, size, CHUNK_ELEMENTS):
            hits = reaching(bits, chunk, threshold)
            while hits:
                i, hits = next_hit(chunk, hits)
                own = magnitude(bits[i])
                is_tie = own == threshold
                # A tensor that changes meanwhile must not overrun its payload.
                if (own > threshold or (is_tie and ties > 0)) and kept < values.size:
                    ties -= is_tie
                    values[kept] = bits[i] if own < NAN else NAN
                    _mark(start + np.int64(i), kept, parts)
                    kept += 1
    keep(scratch)


@loop
def _mark(position: Any, kept: int, parts: _Parts) -> None:
    if parts.mask.size:
        parts.mask[position // 8] |= np.uint8(1 << position % 8)
    else:
        parts.counts[position // STRETCH_ELEMENTS] += 1
        parts.offsets[kept] = np.uint16(position % STRETCH_ELEMENTS)


@entry
def _spread_list(parts: _Parts, out: Any, add: bool) -> Any:
    """Numbers to their positions; False where they do not ascend or do not fit."""
    numbers, kept = parts.numbers, 0
    for stretch in range(parts.counts.size):
        stop, last = kept + parts.counts[stretch], np.int64(-1)
        if stop < kept or stop > numbers.size:
            return False
        while kept < stop:
            offset = np.int64(parts.offsets[kept])
            place = stretch * STRETCH_ELEMENTS + offset
            if offset <= last or place >= out.size:
                return False
            out[place] = out[place] + numbers[kept] if add else numbers[kept]
            kept, last = kept + 1, offset
    return kept == numbers.size


@entry
def _spread_mask(parts: _Parts, out: Any, add: bool) -> Any:
    """Numbers to the marked positions; False where there are not as many of these."""
    numbers, kept = parts.numbers, 0
    for byte in range(parts.mask.size):
        marks = parts.mask[byte]
        if not marks:
            continue
        for bit in range(8):
            if marks >> np.uint8(bit) & np.uint8(1):
                place = 8 * byte + bit
                if kept == numbers.size or place >= out.size:
                    return False
                out[place] = out[place] + numbers[kept] if add else numbers[kept]
                kept += 1
    return kept == numbers.size
