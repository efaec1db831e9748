"""Kernels of logarithmic levels where a single bit decides: at every edge and beside it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from thinwire.formats import parse_format
from thinwire.wire import codec_for, reference_codec
from thinwire.wire.logarithm import LogLevels
from wire_cases import CPU, KEY, encoded

BITS = range(4, 9)


def _with_neighbours(numbers: tuple[float, ...], top: float) -> Tensor:
    """Numbers, the floats next to them, and their negatives; the top level makes the scale 1."""
    middle = np.array(numbers, np.float32)
    below, above = (np.nextafter(middle, np.float32(end)) for end in (0, np.inf))
    magnitudes = torch.from_numpy(np.concatenate([middle, below, above]).clip(0, top))
    return torch.cat([torch.tensor([top]), magnitudes, -magnitudes])


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("options", ["", "+stochastic"])
def test_at_every_edge_and_level_and_beside_them(bits: int, options: str) -> None:
    # A block that holds them all: at most 2 * 3 * 255 of them, and the top level.
    fmt = parse_format(f"log{bits}/2048{options}")
    levels = LogLevels.of(fmt)
    x = _with_neighbours((*levels.edges, *levels.levels), levels.reach)
    kernel = codec_for(fmt, CPU)
    for step in range(5):
        payload = encoded(kernel, x, KEY.fold(step))
        assert payload[:4].view(torch.float32) == 1.0
        assert torch.equal(payload, encoded(reference_codec(fmt), x, KEY.fold(step)))


@pytest.mark.parametrize("bits", BITS)
def test_every_mantissa_of_every_octave(bits: int) -> None:
    # The 16 leading bits of a float, sign and exponent among them, decide more than an edge has.
    fmt = parse_format(f"log{bits}/65536")
    levels = LogLevels.of(fmt)
    x = (torch.arange(1 << 16) << 16).to(torch.int32).view(torch.float32)
    x = torch.cat([torch.tensor([levels.reach]), x[x.abs() <= levels.reach]])
    assert torch.equal(encoded(codec_for(fmt, CPU), x), encoded(reference_codec(fmt), x))


@pytest.mark.parametrize("bits", BITS)
def test_every_code_decodes_to_its_level(bits: int) -> None:
    fmt = parse_format(f"log{bits}/256")
    levels = LogLevels.of(fmt)
    x = torch.tensor(levels.signed).repeat(256 >> bits)
    out = torch.empty(256)
    codec_for(fmt, CPU).decode_into(encoded(reference_codec(fmt), x), out)
    assert torch.equal(out, x)
