"""What is timed of arithmetic: copies, matrix products, whole transformer blocks, AdamW."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from thinwire.train.calibration.clock import Case
from thinwire.train.models import Block

__all__ = ["BLOCK_SHAPES", "DTYPES", "UPDATED_NUMELS", "arithmetic_cases", "block_tokens"]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# more than caches hold: what is partly in them is copied at any rate
COPIED_NUMEL = 1 << 23
PRODUCT_TOKENS = 256
PRODUCT_WIDTHS = (32, 64, 128, 256, 512)
# training has other work between two updates: all but the first are more than caches hold
UPDATED_NUMELS = (1 << 14, 1 << 22, 1 << 23)
UPDATED_TENSORS = 16

# (hidden, heads, sequences, length): small and large, with few and with many tokens; the first does
# little but start kernels
BLOCK_SHAPES = (
    (16, 1, 1, 16),
    (64, 2, 4, 128),
    (192, 6, 1, 128),
    (192, 6, 4, 128),
    (384, 6, 1, 128),
    (384, 6, 4, 128),
    (640, 10, 2, 128),
)


def arithmetic_cases(device: torch.device) -> Iterator[Case]:
    """Everything that computes and does not communicate, in the dtypes that recipes compute in."""
    source = torch.ones(COPIED_NUMEL, device=device)
    yield Case(figure="copy", size=COPIED_NUMEL, action=_copy(torch.empty_like(source), source))
    for numel in UPDATED_NUMELS:
        yield Case(figure="adamw", size=numel, action=_update(numel, device))
    for name, dtype in DTYPES.items():
        for width in PRODUCT_WIDTHS:
            yield _product(name, width, dtype, device)
        for index, shape in enumerate(BLOCK_SHAPES):
            forward, both = _block(shape, dtype, device)
            # counted from 1: a sample has a size above 0
            yield Case(figure="block forward", case=name, size=index + 1, action=forward)
            yield Case(figure="block both ways", case=name, size=index + 1, action=both)


def block_tokens(shape: tuple[int, int, int, int]) -> int:
    """Tokens that a block of this shape sees at once."""
    _, _, sequences, length = shape
    return sequences * length


def _copy(target: Tensor, source: Tensor) -> Callable[[], object]:
    return lambda: target.copy_(source)


def _product(name: str, width: int, dtype: torch.dtype, device: torch.device) -> Case:
    values = torch.randn(PRODUCT_TOKENS, width).to(device, dtype)
    weight = torch.randn(4 * width, width).to(device, dtype)
    flops = 2 * PRODUCT_TOKENS * weight.numel()
    return Case(
        figure="matmul",
        case=name,
        size=flops,
        action=lambda: functional.linear(values, weight),
    )


def _block(
    shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Forward as in training, and forward with backward."""
    hidden, heads, sequences, length = shape
    block = Block(hidden, heads).to(device, dtype)
    values = torch.randn(sequences, length, hidden).to(device, dtype).requires_grad_()
    gradient = torch.randn(sequences, length, hidden).to(device, dtype)

    def both() -> None:
        torch.autograd.backward(block(values), gradient)
        values.grad = None
        block.zero_grad()

    return lambda: block(values), both


def _update(numel: int, device: torch.device) -> Callable[[], object]:
    part = numel // UPDATED_TENSORS
    parameters = [nn.Parameter(torch.zeros(part, device=device)) for _ in range(UPDATED_TENSORS)]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 1e-3)
    return torch.optim.AdamW(parameters, fused=True).step
