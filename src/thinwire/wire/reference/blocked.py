"""The walk over blocks that all block-wise families share.

Full blocks are rows of a matrix and go through in groups, so that temporary memory stays bounded;
a ragged last block is a row of its own, of its own width. A family only says how rows of values
become codes and scales, and back.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from thinwire.formats import WireFormat
from thinwire.wire.codec import Codec
from thinwire.wire.key import Key, key_tensor, random_halves
from thinwire.wire.reference.narrow import narrow
from thinwire.wire.reference.planes import pack, unpack
from thinwire.wire.reference.rotation import rotated, unrotated
from thinwire.wire.scales import FLOAT32_MAX

__all__ = ["BlockedReference", "EncodedRows", "RandomRows"]

_GROUP_ELEMENTS = 2**20

# What the compiler would else do on an accelerator: divide approximately, flush denormals to zero,
# and fuse products with sums. Each would move some values over the edge between two codes.
_SAME_ARITHMETIC = {
    "eager_numerics.division_rounding": True,
    "eager_numerics.disable_ftz": True,
    "emulate_precision_casts": True,
}

_Code = Callable[["Tensor", "RandomRows", "Tensor"], "tuple[Tensor, Tensor, Tensor | None]"]
_Restore = Callable[["Tensor", "Tensor", "Tensor | None", "Tensor", int], "Tensor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedRows:
    """Rows of one width in coded form. A family that has no zero points leaves them out.

    Attributes:
        codes: uint8, [rows, width].
        scales: float32, [rows].
        zeros: float32, [rows], or None.
    """

    codes: Tensor
    scales: Tensor
    zeros: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomRows:
    """The random numbers of some rows: drawn when asked for, always the same.

    Attributes:
        key: as made by `thinwire.wire.key.key_tensor`.
        blocks: int64, [rows], the number of each row's block.
    """

    key: Tensor
    blocks: Tensor

    def centred(self, values: Tensor) -> Tensor:
        """One number in (-1/2, 1/2) per element: 16 random bits and a half step, mean 0."""
        halves = random_halves(self.key, self.blocks, values.shape[1])
        return (halves.float() + 0.5) / 65536 - 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class _RowGroup:
    """Consecutive blocks of equal width."""

    first_block: int
    num_blocks: int
    width: int
    first_element: int

    def values_of(self, flat: Tensor) -> Tensor:
        last_element = self.first_element + self.num_blocks * self.width
        return flat[self.first_element : last_element].view(self.num_blocks, self.width)

    def blocks(self, device: torch.device) -> Tensor:
        return torch.arange(self.first_block, self.first_block + self.num_blocks, device=device)

    def scales_of(self, scales: Tensor) -> Tensor:
        return scales[self.first_block : self.first_block + self.num_blocks]


def _row_groups(numel: int, block: int) -> Iterator[_RowGroup]:
    full, ragged = divmod(numel, block)
    step = max(1, _GROUP_ELEMENTS // block)
    for first in range(0, full, step):
        num_blocks = min(step, full - first)
        yield _RowGroup(
            first_block=first, num_blocks=num_blocks, width=block, first_element=first * block
        )
    if ragged:
        yield _RowGroup(first_block=full, num_blocks=1, width=ragged, first_element=full * block)


class _Parts:
    """The parts of one payload as views: head, scales, zero points, and codes by row group."""

    def __init__(self, payload: Tensor, fmt: WireFormat, numel: int) -> None:
        layout = fmt.layout(numel)
        scale_dtype = torch.bfloat16 if fmt.scale_bytes == 2 else torch.float32
        self.head = payload[: layout.scales_at]
        self.scales = payload[layout.scales_at : layout.zeros_at].view(scale_dtype)
        self.zeros = payload[layout.zeros_at : layout.codes_at].view(scale_dtype)
        self.padding = payload[layout.codes_end :]
        self._codes = payload[layout.codes_at : layout.codes_end]
        self._format = fmt

    def codes(self, group: _RowGroup) -> Tensor:
        """The packed codes of a group: uint8, [blocks, bytes of one block]."""
        assert self._format.block is not None
        row_bytes = self._format.code_bytes(group.width)
        start = group.first_block * self._format.code_bytes(self._format.block)
        return self._codes[start : start + group.num_blocks * row_bytes].view(-1, row_bytes)


class BlockedReference(Codec):
    """A codec that gives every block of consecutive elements a scale of its own.

    With ``+hadamard`` the family sees rotated values, an eighth their size; a sum is rotated back
    once, after it is complete.
    """

    def __init__(self, fmt: WireFormat) -> None:
        super().__init__(fmt)
        self._rotates = "hadamard" in fmt.options
        self._code: _Code = self._code_rows
        self._restore: _Restore = self._restore_rows

    def fuse(self) -> None:
        """From now on, let torch.compile make one kernel of the arithmetic of a group of blocks.

        A single row, such as a ragged last block, stays as it is: it would be compiled apart.
        """
        self._code = _compiled(self._code_rows)
        self._restore = _compiled(self._restore_rows)

    @abstractmethod
    def _encode_rows(self, values: Tensor, random: RandomRows, head: Tensor) -> EncodedRows:
        """Code rows of float32 values; each row is one block."""

    @abstractmethod
    def _decode_rows(self, rows: EncodedRows, head: Tensor) -> Tensor:
        """The float32 values of coded rows."""

    def _head(self, x: Tensor, key: Key) -> Tensor | None:
        """What all blocks of a tensor share, as bytes; a family that has nothing leaves it out."""

    def _encode(self, x: Tensor, out: Tensor, key: Key) -> None:
        parts = _Parts(out, self.format, x.numel())
        parts.padding.zero_()
        bits = key_tensor(key, x.device)
        head = self._head(x, key)
        if head is not None:
            parts.head.copy_(head)
        for group in self._groups(x.numel()):
            code = self._code if group.num_blocks > 1 else self._code_rows
            random = RandomRows(key=bits, blocks=group.blocks(x.device))
            packed, scales, zeros = code(group.values_of(x), random, parts.head)
            parts.codes(group).copy_(packed)
            # Not in compiled code, whose NaN has other bits.
            group.scales_of(parts.scales).copy_(narrow(scales, parts.scales.dtype))
            if zeros is not None:
                group.scales_of(parts.zeros).copy_(zeros)

    def _decode(self, payload: Tensor, out: Tensor) -> None:
        parts = _Parts(payload, self.format, out.numel())
        for group in self._groups(out.numel()):
            values = self._decode_group(parts, group)
            if self._rotates:
                values = unrotated(values).clamp(-FLOAT32_MAX, FLOAT32_MAX)
            group.values_of(out).copy_(narrow(values, out.dtype))

    def _decode_sum(self, payloads: Sequence[Tensor], out: Tensor) -> None:
        if len(payloads) == 1:
            self._decode(payloads[0], out)
            return
        all_parts = [_Parts(payload, self.format, out.numel()) for payload in payloads]
        for group in self._groups(out.numel()):
            total = self._decode_group(all_parts[0], group)
            for parts in all_parts[1:]:
                total += self._decode_group(parts, group)
            group.values_of(out).copy_(unrotated(total) if self._rotates else total)

    def _rows_of(self, x: Tensor) -> Iterator[Tensor]:
        """The float32 values of ``x`` as the family sees them, a group of blocks at a time."""
        for group in self._groups(x.numel()):
            yield self._seen(group.values_of(x))

    def _groups(self, numel: int) -> Iterator[_RowGroup]:
        assert self.format.block is not None
        return _row_groups(numel, self.format.block)

    def _seen(self, values: Tensor) -> Tensor:
        return rotated(values.float()) if self._rotates else values.float()

    def _code_rows(
        self, values: Tensor, random: RandomRows, head: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Packed codes, scales and zero points of rows of values."""
        rows = self._encode_rows(self._seen(values), random, head)
        return pack(rows.codes, self.format.bits), rows.scales, rows.zeros

    def _restore_rows(
        self, packed: Tensor, scales: Tensor, zeros: Tensor | None, head: Tensor, width: int
    ) -> Tensor:
        """Float32 values of packed rows of ``width`` elements, rotated still."""
        codes = unpack(packed, self.format.bits, width)
        rows = EncodedRows(
            codes=codes, scales=scales.float(), zeros=None if zeros is None else zeros.float()
        )
        return self._decode_rows(rows, head)

    def _decode_group(self, parts: _Parts, group: _RowGroup) -> Tensor:
        restore = self._restore if group.num_blocks > 1 else self._restore_rows
        zeros = group.scales_of(parts.zeros) if parts.zeros.numel() else None
        scales = group.scales_of(parts.scales)
        return restore(parts.codes(group), scales, zeros, parts.head, group.width)


def _compiled(function: Any) -> Any:
    # One graph for all sizes. Each format counts its own recompilations: they share this code.
    compile_: Any = torch.compile  # its stub lacks the last argument
    return compile_(
        function, dynamic=True, fullgraph=True, isolate_recompiles=True, options=_SAME_ARITHMETIC
    )
