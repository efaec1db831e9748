"""Compress the traffic of a model that is wrapped already, here by FSDP2 and by DDP.

torchrun --nproc-per-node 2 examples/compress_a_wrapped_model.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw


def make_layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(3)))


def train(name: str, model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        model(torch.randn(8, 256)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    report = tw.ledger(model)
    if dist.get_rank() == 0:
        print(f"{name}: {report['ratio']:.1f} times fewer bytes than the same collectives in bf16")


def main() -> None:
    dist.init_process_group("gloo")

    sharded = make_layers()
    for layer in (*sharded, sharded):
        fully_shard(layer, mp_policy=MixedPrecisionPolicy(param_dtype=torch.float32))
    tw.compress(sharded, tw.recipes.qsdp(compute="fp32"))  # the new line
    train("FSDP2", sharded)

    replicated = DistributedDataParallel(make_layers())
    tw.compress(replicated, tw.recipes.ddp(grads="int4/128+stochastic"))  # the new line
    train("DDP", replicated)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
