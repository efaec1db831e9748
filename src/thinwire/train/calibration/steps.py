"""Whole training steps: what they take beyond arithmetic, codecs and messages.

That is what PyTorch's hooks, views and optimizers cost, layer by layer and step by step, which
models show that are so small that only the number of layers, calls and pieces counts; and what
every parameter costs in memory that is not in caches, pages touched for the first time and waits
for the slowest rank, which a wider model shows.
"""

from __future__ import annotations

import math
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
    "FIGURES",
    "OVERHEAD_OF",
    "RUN_MICRO_BATCH",
    "TINY_LAYERS",
    "StepRun",
    "run_shape",
    "step_runs",
    "wide_hidden",
]

# recipes that are run, and which of the planner's OVERHEADS they show; layers are not grouped, so
# that what each costs can be told
OVERHEAD_OF = {
    "zero3:compute=fp32": "stock",
    "zero3": "stock",
    "zeropp:group_bytes=0": "compressed",
    "qsdp:group_bytes=0": "compressed",
    "thin:group_bytes=0": "resident",
    "ddp": "replicated",
    "ddp:grads=int8/256": "hooked",
}
# a sample's size is the number of layers of a tiny model, or the width of a wide one
FIGURES = ("tiny step", "wide step")
TINY_LAYERS = (1, 5)
WIDE_LAYERS = 3
WIDE_HEADS = 2
NARROWEST, WIDEST = 32, 320
TINY_TOKENS, WIDE_TOKENS, RUN_MICRO_BATCH = 16, 64, 1
STEPS = 8
# of an uncompressed step of the wide model on the wire
LONGEST_S = 1.0
PARAMETER_BYTES = 16  # that such a step sends: two gathers and an all-reduce in fp32


def run_shape(figure: str, size: int) -> tuple[GPTShape, int]:
    """The model of a sample, and its sequence length.

    Args:
        figure: one of ``FIGURES``.
        size: layers of a tiny model, width of a wide one.
    """
    if figure == "tiny step":
        return GPTShape(layers=size, hidden=16, heads=1), TINY_TOKENS
    return GPTShape(layers=WIDE_LAYERS, hidden=size, heads=WIDE_HEADS), WIDE_TOKENS


def wide_hidden(link_bit_per_s: float | None) -> int:
    """A width at which steps do not take forever over a link.

    Args:
        link_bit_per_s: of a host; ``None``: not shaped.
    """
    if link_bit_per_s is None:
        return WIDEST
    parameters = LONGEST_S * link_bit_per_s / 8 / PARAMETER_BYTES
    width = math.sqrt(parameters / (12 * WIDE_LAYERS))  # 12 h^2 a layer
    return min(WIDEST, max(NARROWEST, 16 * int(width / 16)))


@dataclass(slots=True)
class StepRun:
    """A model under a recipe, ready to take steps.

    Attributes:
        recipe: its text.
        figure: one of ``FIGURES``.
        size: as in a sample of that figure.
        model: wrapped.
        batches: of this rank.
        device: where it trains.
    """

    recipe: str
    figure: str
    size: int
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


def step_runs(device: torch.device, link_bit_per_s: float | None) -> Iterator[StepRun]:
    """Every recipe with every model. A collective call.

    Args:
        device: where they train.
        link_bit_per_s: of a host; ``None``: not shaped.
    """
    cases = [("tiny step", layers) for layers in TINY_LAYERS]
    cases.append(("wide step", wide_hidden(link_bit_per_s)))
    for recipe in OVERHEAD_OF:
        for figure, size in cases:
            shape, tokens = run_shape(figure, size)
            torch.manual_seed(0)
            model = tw.shard(GPT(shape, tokens).to(device), parse_recipe(recipe))
            yield StepRun(recipe, figure, size, model, _batches(tokens), device)


def _batches(tokens: int) -> Batches:
    return Batches(
        default_corpus(),
        seq_len=tokens,
        micro_batch=RUN_MICRO_BATCH,
        seed=0,
        rank=dist.get_rank(),
        world=dist.get_world_size(),
    )


def _tell_nobody(step: int, loss: float, step_s: float) -> None:
    """A calibration has no use for losses."""
