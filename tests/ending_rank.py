"""A rank of `test_exit` that trains with late gradients and ends in one way or another.

Usage: ending_rank.py RANK FOLDER RECIPE HOW
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import thinwire as tw
from thinwire.comm import collectives, exchange, sender
from thinwire.recipes import parse_recipe


class Deep(nn.Module):
    """Several units of a few hundred kilobytes each."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(700, 700) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = torch.tanh(block(x))
        return x


def exchange_often(*args: Any) -> None:
    """A slow wire: the last reductions are in the backend when the script is at its end."""
    for _ in range(30):
        exchange.exchange(*args)


def train(model: nn.Module, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(4, 700)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def end(how: str, rank: int) -> None:
    """End otherwise than by reaching the end of the script."""
    if how == "destroy":
        dist.destroy_process_group()
        sys.exit(3)
    elif how == "error":
        raise ValueError("the next batch is broken")
    elif how == "killed" and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "forked":
        # such as the workers of a data loader; its end runs what is registered with threads
        child = multiprocessing.get_context("fork").Process(target=abs, args=(0,))
        child.start()
        child.join()
        assert child.exitcode == 0


rank, folder, text, how = int(sys.argv[1]), *sys.argv[2:]
torch.set_num_threads(1)
torch.manual_seed(0)
# whoever waits for nothing is seen to
sender.LONGEST_WAIT_AT_EXIT_S = 2.0 if how == "silent" else 3600.0
setattr(collectives, "exchange", exchange_often)  # noqa: B010 - a stand-in of another type
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
dist.init_process_group(
    "gloo",
    init_method=f"file://{folder}/store",
    rank=rank,
    world_size=2,
    timeout=timedelta(seconds=120),
)
model = tw.shard(Deep(), parse_recipe(text))
train(model, 2)
if how == "silent" and rank == 1:
    time.sleep(600)
if how == "silent":
    # the last reduction needs the peer; one more backward pass would wait for it
    model(torch.ones(4, 700)).square().mean().backward()
else:
    train(model, 1)
sys.stdout.write("trained\n")
end(how, rank)
