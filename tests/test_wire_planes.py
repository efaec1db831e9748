"""Bit planes: every code comes back, and bytes lie where the format page says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from thinwire.formats import WireFormat
from thinwire.wire.kernels import planes as kernel_planes
from thinwire.wire.reference.planes import pack, unpack

WIDTHS = (1, 2, 3, 5, 7, 8, 9, 24, 63, 64, 65, 128, 137, 1000)


@pytest.mark.parametrize("bits", range(1, 8))
@pytest.mark.parametrize("width", WIDTHS)
def test_codes_come_back_and_kernels_write_the_same_bytes(bits: int, width: int) -> None:
    rows = 3
    generator = torch.Generator().manual_seed(width)
    codes = torch.randint(0, 2**bits, (rows, width), dtype=torch.uint8, generator=generator)
    packed = pack(codes, bits)
    assert torch.equal(unpack(packed, bits, width), codes)
    if bits > 1:  # the family int begins at two bits
        assert packed.shape[1] == WireFormat(family="int", bits=bits, block=8).code_bytes(width)

    stride = -(-width // 8) * 8
    scratch = np.zeros((rows, stride), np.uint8)
    scratch[:, :width] = codes.numpy()
    kernel_packed = np.full(packed.numel(), 0xAB, np.uint8)
    kernel_planes.pack(scratch.reshape(-1), stride, width, bits, kernel_packed)
    assert kernel_packed.tolist() == packed.flatten().tolist()
    dirty = np.full(rows * stride, 0xCD, np.uint8)
    kernel_planes.unpack(kernel_packed, stride, width, bits, dirty)
    assert dirty.reshape(rows, stride)[:, :width].tolist() == codes.tolist()


def test_a_four_bit_byte_holds_codes_half_a_block_apart() -> None:
    codes = torch.tensor([[1, 2, 3, 4, 5]], dtype=torch.uint8)
    assert pack(codes, 4).tolist() == [[1 | 4 << 4, 2 | 5 << 4, 3]]


def test_planes_come_low_bits_first() -> None:
    codes = torch.tensor([[0b101, 0b110]], dtype=torch.uint8)
    # Plane of width 2: 01 and 10, a byte each holds elements 0 | 1 (stretch 1); plane of width 1.
    assert pack(codes, 3).tolist() == [[0b01 | 0b10 << 2, 0b1 | 0b1 << 1]]
