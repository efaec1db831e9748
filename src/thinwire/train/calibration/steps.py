"""Whole training steps of models so small that only the number of layers, calls and pieces counts.

What such a step takes beyond arithmetic, codecs and messages is what PyTorch's hooks, views and
optimizers cost, layer by layer and step by step.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist

import thinwire as tw
from thinwire.planner.models.gpt import GPTShape
from thinwire.recipes import parse_recipe
from thinwire.train.corpus import default_corpus
from thinwire.train.data import Batches
from thinwire.train.loop import Schedule, train
from thinwire.train.models import GPT

__all__ = [
    "LAYERS",
    "OVERHEAD_OF",
    "TINY_MICRO_BATCH",
    "TINY_TOKENS",
    "TinyRun",
    "tiny_runs",
    "tiny_shape",
]

# recipes that are run, and which of the planner's OVERHEADS they show
OVERHEAD_OF = {
    "zero3:compute=fp32": "stock",
    "zero3": "stock",
    "zeropp": "compressed",
    "qsdp": "compressed",
    "thin": "resident",
    "ddp": "replicated",
}
LAYERS = (1, 5)
TINY_TOKENS, TINY_MICRO_BATCH = 16, 1
STEPS = 8


def tiny_shape(layers: int) -> GPTShape:
    """A GPT whose arithmetic and bytes are next to nothing."""
    return GPTShape(layers=layers, hidden=16, heads=1)


@dataclass(slots=True)
class TinyRun:
    """A tiny model under a recipe, ready to take steps.

    Attributes:
        recipe: its text.
        layers: of the model.
        model: wrapped.
        batches: of this rank.
        device: where it trains.
    """

    recipe: str
    layers: int
    model: torch.nn.Module
    batches: Batches
    device: torch.device

    def step_s(self) -> float:
        """The median step of a short training. A collective call."""
        trace = train(
            self.model,
            self.batches,
            Schedule(steps=STEPS, learning_rate=1e-4),
            device=self.device,
            on_step=_tell_nobody,
        )
        return statistics.median(trace.step_s[2:])


def tiny_runs(device: torch.device) -> Iterator[TinyRun]:
    """Every recipe at every depth. A collective call."""
    batches = Batches(
        default_corpus(),
        seq_len=TINY_TOKENS,
        micro_batch=TINY_MICRO_BATCH,
        seed=0,
        rank=dist.get_rank(),
        world=dist.get_world_size(),
    )
    for recipe in OVERHEAD_OF:
        for layers in LAYERS:
            torch.manual_seed(0)
            plain = GPT(tiny_shape(layers), TINY_TOKENS).to(device)
            model = tw.shard(plain, parse_recipe(recipe))
            yield TinyRun(recipe, layers, model, batches, device)


def _tell_nobody(step: int, loss: float, step_s: float) -> None:
    """A calibration has no use for losses."""
