"""What is timed of arithmetic: copies, matrix products, whole transformer blocks, AdamW."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from thinwire.train.calibration.clock import Case
from thinwire.train.models import Block

__all__ = ["BLOCK_SHAPES", "DTYPES", "arithmetic_cases", "block_tokens"]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
COPIED_NUMELS = (1 << 14, 1 << 18, 1 << 22)
PRODUCT_TOKENS = 256
PRODUCT_WIDTHS = (32, 64, 128, 256, 512)
UPDATED_NUMELS = (1 << 14, 1 << 18, 1 << 21)
UPDATED_TENSORS = 16

# (hidden, heads, sequences, length): small and large, with few and with many tokens
BLOCK_SHAPES = (
    (64, 2, 4, 128),
    (192, 6, 1, 128),
    (192, 6, 4, 128),
    (384, 6, 1, 128),
    (384, 6, 4, 128),
    (640, 10, 2, 128),
)


def arithmetic_cases() -> Iterator[Case]:
    """Everything that computes and does not communicate, in the dtypes that recipes compute in."""
    for numel in COPIED_NUMELS:
        source, target = torch.ones(numel), torch.empty(numel)
        yield Case(figure="copy", size=numel, action=_copy(target, source))
    for numel in UPDATED_NUMELS:
        yield Case(figure="adamw", size=numel, action=_update(numel))
    for name, dtype in DTYPES.items():
        for width in PRODUCT_WIDTHS:
            yield _product(name, width, dtype)
        for index, shape in enumerate(BLOCK_SHAPES):
            forward, both = _block(*shape, dtype)
            # counted from 1: a sample has a size above 0
            yield Case(figure="block forward", case=name, size=index + 1, action=forward)
            yield Case(figure="block both ways", case=name, size=index + 1, action=both)


def block_tokens(shape: tuple[int, int, int, int]) -> int:
    """Tokens that a block of this shape sees at once."""
    _, _, sequences, length = shape
    return sequences * length


def _copy(target: Tensor, source: Tensor) -> Callable[[], object]:
    return lambda: target.copy_(source)


def _product(name: str, width: int, dtype: torch.dtype) -> Case:
    values = torch.randn(PRODUCT_TOKENS, width).to(dtype)
    weight = torch.randn(4 * width, width).to(dtype)
    flops = 2 * PRODUCT_TOKENS * weight.numel()
    return Case(
        figure="matmul",
        case=name,
        size=flops,
        action=lambda: functional.linear(values, weight),
    )


def _block(
    hidden: int, heads: int, sequences: int, length: int, dtype: torch.dtype
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Forward as in training, and forward with backward."""
    block = Block(hidden, heads).to(dtype)
    values = torch.randn(sequences, length, hidden).to(dtype).requires_grad_()
    gradient = torch.randn(sequences, length, hidden).to(dtype)

    def both() -> None:
        torch.autograd.backward(block(values), gradient)
        values.grad = None
        block.zero_grad()

    return lambda: block(values), both


def _update(numel: int) -> Callable[[], object]:
    part = numel // UPDATED_TENSORS
    parameters = [nn.Parameter(torch.zeros(part)) for _ in range(UPDATED_TENSORS)]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 1e-3)
    return torch.optim.AdamW(parameters, fused=True).step
