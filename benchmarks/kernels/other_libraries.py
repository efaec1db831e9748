"""What bitsandbytes and torchao take for the same work. Run by run.py in their own environment.

    python other_libraries.py NUMEL ROUNDS        prints one JSON document

Both allocate their results, so the growth of memory that is told contains the payload.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import bitsandbytes.functional as bnb
import torch
from torch import Tensor
from torchao.quantization.quant_primitives import (
    MappingType,
    choose_qparams_affine,
    dequantize_affine,
    quantize_affine,
)

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kernels.timing import peak_extra_bytes, ratios

BLOCK = 128
# bitsandbytes' usual block of 8-bit codes
BNB_BLOCK = 256

Encode = Callable[[Tensor], Any]
Decode = Callable[[Any], Tensor]


def torchao_pair(bits: int) -> tuple[Encode, Decode]:
    """Symmetric levels with a scale per block. torchao keeps 4-bit codes in a byte each."""
    top = 2 ** (bits - 1) - 1
    block = (1, BLOCK)

    def encode(x: Tensor) -> Any:
        rows = x.view(-1, BLOCK)
        scale, zero = choose_qparams_affine(
            rows, MappingType.SYMMETRIC, block, torch.int8, -top, top
        )
        return quantize_affine(rows, block, scale, zero, torch.int8, -top, top), scale, zero

    def decode(payload: Any) -> Tensor:
        codes, scale, zero = payload
        values: Tensor = dequantize_affine(codes, block, scale, zero, torch.int8, -top, top)
        return values

    return encode, decode


def rivals() -> Iterator[tuple[str, str, Encode, Decode]]:
    """Name, how many bits, and the two directions."""
    yield (
        "bitsandbytes, blockwise 8 bits",
        "8",
        lambda x: bnb.quantize_blockwise(x, blocksize=BNB_BLOCK),
        lambda payload: bnb.dequantize_blockwise(*payload),
    )
    yield (
        "bitsandbytes, fp4",
        "4",
        lambda x: bnb.quantize_4bit(x, blocksize=BLOCK, quant_type="fp4"),
        lambda payload: bnb.dequantize_4bit(*payload),
    )
    for bits in (8, 4):
        encode, decode = torchao_pair(bits)
        yield f"torchao, int{bits}, eager", str(bits), encode, decode
        compiled = torch.compile(encode), torch.compile(decode)
        yield f"torchao, int{bits}, compiled", str(bits), *compiled


def main() -> None:
    numel, rounds = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    x, y = torch.randn(numel), torch.empty(numel)
    found: dict[str, Any] = {}
    for name, bits, encode, decode in rivals():
        try:
            payload = encode(x)
            figures = ratios(
                {"encode": lambda: encode(x), "decode": lambda: decode(payload)},  # noqa: B023
                lambda: y.copy_(x),
                rounds,
            )
            figures["extra_bytes"] = peak_extra_bytes(lambda: decode(encode(x)))  # noqa: B023
            found[name] = {"bits": bits, **figures}
        except (NotImplementedError, RuntimeError, ValueError) as error:
            found[name] = {"bits": bits, "failed": str(error).splitlines()[0][:200]}
        print(name, found[name], file=sys.stderr, flush=True)
    versions = {name: metadata.version(name) for name in ("torch", "bitsandbytes", "torchao")}
    print(json.dumps({"versions": versions, "figures": found}))


if __name__ == "__main__":
    main()
