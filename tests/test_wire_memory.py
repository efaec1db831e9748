"""No codec takes memory the size of its input: the payload, and a few blocks beside it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from live_bytes import LiveBytes
from peak_memory import can_measure, peak_growth_bytes
from thinwire.formats import parse_format
from thinwire.wire import Key, codec_for, reference_codec
from thinwire.wire.codec import Codec
from wire_cases import CPU

pytestmark = pytest.mark.skipif(
    not can_measure(), reason="this system keeps no high-water mark of memory that can be reset"
)

MIB = 1 << 20

# One of each loop.
WITH_KERNEL = (
    "bf16",
    "fp16",
    "e4m3/128",
    "e5m2/128+stochastic",
    "int8/128",
    "int4/128",
    "int3/128+asym",
    "int4/128+stochastic",
    "int4/128+shift+hadamard",
    "log4/128",
    "log6/128+stochastic",
    "sign/128",
    "sign/96",
    "topk=0.001",
    "topk=0.2",
    "int4/128+clip=95",
    "int4/128+asym+clip=95",
    "int4/128+levels",
)

# Tiles, threads' stacks, and what the interpreter does meanwhile. The inputs have 8 and 16 MiB.
KERNEL_BYTES = 2 * MIB


class _Work:
    """Encoding, decoding and summing of one tensor; the results are there before.

    Attributes:
        held: all tensors.
    """

    def __init__(self, codec: Codec, x: Tensor) -> None:
        payload = torch.ones(codec.format.wire_bytes(x.numel()), dtype=torch.uint8)
        self._codec = codec
        self.held = (x, payload, torch.ones_like(x), torch.ones(x.numel()))

    def __call__(self) -> None:
        x, payload, out, total = self.held
        self._codec.encode_into(x, payload, Key())
        self._codec.decode_into(payload, out)
        self._codec.decode_sum_into([payload, payload], total)

    @property
    def live_bytes(self) -> int:
        """The peak of what torch allocates beside the tensors that are there."""
        with LiveBytes(self.held) as live:
            self()
        return live.peak - sum(tensor.untyped_storage().nbytes() for tensor in self.held)


def _values(numel: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(5)).to(dtype)


def test_the_measure_sees_a_copy() -> None:
    x = torch.ones(4 * MIB)
    grown = peak_growth_bytes(lambda: x.clone())
    # A page or two of the copy may have been there before.
    assert 0.95 * 16 * MIB < grown < 1.25 * 16 * MIB


@pytest.mark.parametrize("text", WITH_KERNEL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_kernel_takes_a_few_tiles(text: str, dtype: torch.dtype) -> None:
    codec = codec_for(parse_format(text), CPU)
    assert codec is not reference_codec(codec.format)
    _Work(codec, torch.ones(4096, dtype=dtype))()  # compiles, and loads what is loaded once
    x = _values(4 * MIB, dtype)
    # topk: its values in 16 bits, which is less than the payload.
    narrowed = codec.format.wire_bytes(x.numel()) if codec.format.family == "topk" else 0
    allowed = KERNEL_BYTES + (narrowed if dtype != torch.float32 else 0)
    work = _Work(codec, x)
    # what else the process loads or hands back meanwhile only adds to it
    assert min(peak_growth_bytes(work) for _ in range(3)) <= allowed


@pytest.mark.parametrize("text", WITH_KERNEL)
def test_what_the_reference_takes_does_not_grow_with_its_input(text: str) -> None:
    codec = reference_codec(parse_format(text))
    small, large = (_Work(codec, _values(n * MIB, torch.float32)).live_bytes for n in (2, 6))
    # 16 MiB more of input; that pieces keep unlike numbers of elements is worth a sixteenth of it.
    assert large - small <= MIB


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_rank_takes_a_few_rows_and_its_factors(dtype: torch.dtype) -> None:
    peaks = []
    for rows in (2048, 6144):
        codec = reference_codec(parse_format("lowrank=4").for_shape((rows, 1024)))
        peaks.append(_Work(codec, _values(rows * 1024, dtype)).live_bytes)
    # 16 MiB more of float32 input, or 8 MiB of bfloat16. A left factor has 64 KiB more; a few live
    # at once.
    assert peaks[1] - peaks[0] <= MIB
    # Rows are taken 2**16 elements, 256 KiB, at a time.
    assert peaks[0] <= 2 * MIB
