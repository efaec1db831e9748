"""Small checkpoints in every form that an inspection reads, made anew for each test."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

__all__ = ["make_tensors", "write_index", "write_safetensors"]


def make_tensors(num_blocks: int = 2, *, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Normally distributed weights with the names of a transformer, a norm and a bias a block."""
    generator = torch.Generator().manual_seed(0)
    tensors = {"embed.weight": torch.randn(32, 64, generator=generator)}
    for block in range(num_blocks):
        prefix = f"blocks.{block}"
        tensors[f"{prefix}.norm.weight"] = torch.ones(64)
        tensors[f"{prefix}.mlp.weight"] = torch.randn(48, 64, generator=generator)
        tensors[f"{prefix}.mlp.bias"] = torch.randn(48, generator=generator)
    return {name: tensor.to(dtype) for name, tensor in tensors.items()}


def write_safetensors(path: Path, tensors: dict[str, Tensor]) -> Path:
    save_file(tensors, path)
    return path


def write_index(folder: Path, tensors: dict[str, Tensor], *, num_shards: int = 2) -> Path:
    """The tensors dealt over several safetensors files, and their index."""
    names = list(tensors)
    places = {}
    for shard in range(num_shards):
        file = f"model-{shard + 1:05}-of-{num_shards:05}.safetensors"
        chosen = {name: tensors[name] for name in names[shard::num_shards]}
        write_safetensors(folder / file, chosen)
        places.update(dict.fromkeys(chosen, file))
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return index
