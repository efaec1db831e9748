"""Codes of 1 to 8 bits in bytes, as bit planes.

A code of b bits is cut into planes whose widths divide a byte (7 = 4 + 2 + 1), low bits first. In a
plane of width w, 8/w codes share a byte, and those are codes a whole stretch apart, not neighbours:
for a block of r elements in a plane of width 4, with q = ceil(r / 2)::

    byte i = code[i] | code[q + i] << 4

so that packing and unpacking work on long runs of bytes without a shuffle.
"""

from __future__ import annotations

import torch
from torch import Tensor

from thinwire.formats import plane_widths

__all__ = ["pack", "unpack"]


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack codes, block by block.

    Args:
        codes: uint8 of shape [rows, width], one block a row, every code below ``2**bits``.

    Returns:
        uint8 of shape [rows, bytes of one block].
    """
    planes, shift = [], 0
    for plane_bits in plane_widths(bits):
        planes.append(_pack_plane(codes >> shift & (1 << plane_bits) - 1, plane_bits))
        shift += plane_bits
    return torch.cat(planes, dim=1)


def unpack(packed: Tensor, bits: int, width: int) -> Tensor:
    """The inverse of `pack` for blocks of ``width`` elements: uint8 of shape [rows, width]."""
    codes = torch.zeros(packed.shape[0], width, dtype=torch.uint8, device=packed.device)
    start, shift = 0, 0
    for plane_bits in plane_widths(bits):
        stretch = -(-width * plane_bits // 8)
        plane = packed[:, start : start + stretch]
        codes |= _unpack_plane(plane, plane_bits)[:, :width] << shift
        start += stretch
        shift += plane_bits
    return codes


def _pack_plane(codes: Tensor, plane_bits: int) -> Tensor:
    rows, width = codes.shape
    stretch = -(-width * plane_bits // 8)
    packed = torch.zeros(rows, stretch, dtype=torch.uint8, device=codes.device)
    for index in range(8 // plane_bits):
        part = codes[:, index * stretch : (index + 1) * stretch]
        packed[:, : part.shape[1]] |= part << index * plane_bits
    return packed


def _unpack_plane(packed: Tensor, plane_bits: int) -> Tensor:
    mask = (1 << plane_bits) - 1
    parts = [packed >> index * plane_bits & mask for index in range(8 // plane_bits)]
    return torch.cat(parts, dim=1)
