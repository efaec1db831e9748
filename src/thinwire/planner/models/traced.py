"""Any torch module as a workload: its forward is run once on the meta device, where nothing is
allocated and nothing computed, and what it would do is counted. Attention runs in its plain form
there, so its square of scores is among the activations even where a fused kernel would be chosen.

This is the only module of the planner that needs torch; whoever plans a named model never loads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from thinwire.errors import ConfigError
from thinwire.planner.operation import Operation
from thinwire.planner.workload import Layer, Parameter, Workload

__all__ = ["trace_module"]

FLOAT32_BYTES = 4


@dataclass(slots=True)
class _Counts:
    """What one block did in one forward."""

    flops: float = 0.0
    storages: dict[int, int] = field(default_factory=dict)

    @property
    def saved_bytes(self) -> int:
        return sum(self.storages.values())


def trace_module(module: nn.Module, *inputs: Tensor, name: str = "module") -> Workload:
    """The workload of a module at the shape of some inputs.

    The repeated blocks are the items of its outermost ``nn.ModuleList`` containers, as
    :func:`thinwire.shard` takes them; what is outside them is the root.

    Args:
        module: all of it on the meta device: build it under ``with torch.device("meta")``.
        inputs: of one micro-batch of one sequence, on the meta device, ``[1, tokens, ...]``.
        name: of the workload.

    Raises:
        ConfigError: the module or an input is not on the meta device, or an input has no tokens.
    """
    tensors = (*module.parameters(), *module.buffers(), *inputs)
    if any(tensor.device.type != "meta" for tensor in tensors):
        raise ConfigError(
            'a module is traced on the meta device: build it under `with torch.device("meta"):`, '
            "and its inputs too"
        )
    if not inputs or inputs[0].dim() < 2:
        raise ConfigError("a module is traced with inputs of shape [1, tokens, ...]: give one")
    tokens = inputs[0].shape[1]
    blocks = dict(_blocks(module, ""))
    counts = _count(module, inputs, blocks)
    inside = {id(p) for block in blocks.values() for p in block.parameters()}
    outside = [(n, p) for n, p in module.named_parameters() if id(p) not in inside]
    root = counts.pop("")
    return Workload(
        name=name,
        tokens=tokens,
        root=Layer(
            name="",
            parameters=tuple(Parameter(name=n, shape=tuple(p.shape)) for n, p in outside),
            operations=(_operation("outside blocks", root, tokens),),
        ),
        layers=tuple(_layer(key, blocks[key], counts[key], tokens) for key in blocks),
    )


def _blocks(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    for name, child in module.named_children():
        path = f"{prefix}.{name}" if prefix else name
        if isinstance(child, nn.ModuleList):
            yield from (
                (f"{path}.{index}", item)
                for index, item in enumerate(child)
                if any(True for _ in item.parameters())
            )
        else:
            yield from _blocks(child, path)


def _count(
    module: nn.Module, inputs: tuple[Tensor, ...], blocks: dict[str, nn.Module]
) -> dict[str, _Counts]:
    """FLOPs and saved bytes by block; under the empty name what happens outside them."""
    counts: dict[str, _Counts] = {"": _Counts(), **{name: _Counts() for name in blocks}}
    current = [""]
    parameters = {p.untyped_storage()._cdata for p in module.parameters()}
    seen: set[int] = set()
    alive: list[Tensor] = []  # a freed storage's address would be taken for the next one's

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in parameters and storage._cdata not in seen:
            seen.add(storage._cdata)
            alive.append(tensor)
            counts[current[0]].storages[storage._cdata] = storage.nbytes()
        return tensor

    flops = FlopCounterMode(display=False)
    spent = [0]

    def leave(to: str) -> None:
        total = flops.get_total_flops()
        counts[current[0]].flops += total - spent[0]
        spent[0], current[0] = total, to

    def enter_block(name: str) -> Any:
        return lambda *_: leave(name)

    handles = [
        handle
        for name, block in blocks.items()
        for handle in (
            block.register_forward_pre_hook(enter_block(name)),
            block.register_forward_hook(lambda *_: leave("")),
        )
    ]
    try:
        with flops, torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            module(*inputs)
            leave("")
    finally:
        for handle in handles:
            handle.remove()
    return counts


def _layer(name: str, block: nn.Module, counts: _Counts, tokens: int) -> Layer:
    return Layer(
        name=name,
        parameters=tuple(
            Parameter(name=n, shape=tuple(p.shape)) for n, p in block.named_parameters()
        ),
        operations=(_operation(name, counts, tokens),),
        boundary=_width(counts, tokens),
    )


def _operation(name: str, counts: _Counts, tokens: int) -> Operation:
    saved = counts.saved_bytes / FLOAT32_BYTES / tokens
    # every saved tensor was written once and read once; what was not saved is not seen
    return Operation(name=name, flops=counts.flops / tokens, moved=2 * saved, saved=saved)


def _width(counts: _Counts, tokens: int) -> float:
    """Elements per token of the first tensor a block keeps: its input, as a norm keeps it."""
    first = next(iter(counts.storages.values()), 0)
    return first / FLOAT32_BYTES / tokens
