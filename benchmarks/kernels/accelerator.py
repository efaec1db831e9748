"""Checks and times the compiled reference on an accelerator. Needs one, and Triton.

    python benchmarks/kernels/accelerator.py

For every format: are payload and values those of the CPU's reference, bit for bit, and how long do
encode and decode take beside a copy of the fp32 input. Exit code 1 if any bit differs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from thinwire.formats import parse_format
from thinwire.wire.codec import Codec
from thinwire.wire.key import Key
from thinwire.wire.registry import codec_for, reference_codec

FORMATS = (
    "int8/128,int4/128,int3/128+asym+bf16scale,int4/128+stochastic,int8/256+shift,"
    "int4/128+hadamard,log4/128,log4/128+stochastic,sign/128,e4m3/128,e5m2/128+stochastic"
)
CPU = torch.device("cpu")
KEY = Key(seed=1, parameter="benchmark")


def payload_of(codec: Codec, x: Tensor) -> Tensor:
    payload = torch.zeros(codec.format.wire_bytes(x.numel()), dtype=torch.uint8, device=x.device)
    codec.encode_into(x, payload, KEY)
    return payload


def bits_that_differ(codec: Codec, x: Tensor) -> tuple[int, int]:
    """How many bytes of the payload, and how many decoded values, are not the CPU's."""
    reference = reference_codec(codec.format)
    expected = payload_of(reference, x.cpu())
    payload = payload_of(codec, x)
    values, out = torch.empty(x.numel()), torch.empty_like(x)
    reference.decode_into(expected, values)
    codec.decode_into(expected.to(x.device), out)
    same = (out.cpu() == values) | (out.cpu().isnan() & values.isnan())
    return int((payload.cpu() != expected).sum()), int((~same).sum())


def milliseconds(action: Callable[[], object], rounds: int) -> float:
    """The median time, waiting for the accelerator before and after."""
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        action()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--formats", default=FORMATS)
    parser.add_argument("--numel", type=int, default=1 << 26)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no accelerator: run this where torch.cuda.is_available() is true")
    device = torch.device("cuda")
    print(torch.cuda.get_device_name(device), "torch", torch.__version__)
    generator = torch.Generator().manual_seed(0)
    small = (
        torch.randn(100_003, generator=generator) * torch.randn(100_003, generator=generator).exp()
    )
    small[5_000] = torch.nan
    small[70_000:70_200] *= 2.0**-130  # denormal
    x, y = torch.randn(options.numel, device=device), torch.empty(options.numel, device=device)
    copy_ms = milliseconds(lambda: y.copy_(x), options.rounds)
    failed = False
    for text in options.formats.split(","):
        codec = codec_for(parse_format(text), device)
        differing = bits_that_differ(codec, small.to(device))
        failed |= any(differing)
        payload = payload_of(codec, x)
        codec.decode_into(payload, y)
        encode = partial(codec.encode_into, x, payload, KEY)
        encode_ms = milliseconds(encode, options.rounds)
        decode_ms = milliseconds(partial(codec.decode_into, payload, y), options.rounds)
        print(
            f"{text:28} bytes and values that differ {differing}, in copies: "
            f"encode {encode_ms / copy_ms:.2f}, decode {decode_ms / copy_ms:.2f}",
            flush=True,
        )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
