"""The reference loop: the steps of one rank, timed and counted the same way for every recipe.

A step lasts from the end of the step before to its own end, data, agreement and optimizer
included, so that nothing a recipe does between steps is lost from its time:

    |  batch  forward  backward  agree  optimizer  |  batch  forward  ...
    end of step i - 1                              end of step i
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

import thinwire as tw
from thinwire.errors import ConfigError
from thinwire.train.data import Batches
from thinwire.train.finite import FiniteCheck
from thinwire.train.models import next_token_loss
from thinwire.train.traffic import Traffic, TrafficMeter

__all__ = ["SETTLING_STEPS", "Schedule", "Trace", "train", "validate"]

# The first step compiles kernels and opens connections, the second still grows buffers.
SETTLING_STEPS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How long to train and how fast: AdamW, linear warm-up, then a cosine down to a tenth.

    Attributes:
        steps: optimizer steps.
        learning_rate: at the end of the warm-up.
        warmup_steps: steps of the linear rise.
        clip_norm: the gradient norm to clip to; ``None`` leaves gradients as they are.
        period: steps in which a recipe does once all that it does: its ``local_steps``.

    Raises:
        ConfigError: a number is out of range, or not even one period fits.
    """

    steps: int
    learning_rate: float
    warmup_steps: int = 10
    clip_norm: float | None = None
    period: int = 1

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError(f"steps: {self.steps} is below 1")
        if self.period > self.steps:
            raise ConfigError(f"steps: {self.steps} are fewer than one period of {self.period}")
        if self.warmup_steps < 0:
            raise ConfigError(f"warmup_steps: {self.warmup_steps} is below 0")
        for name in ("learning_rate", "clip_norm"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name}: {value} is not a positive number")

    @property
    def settling_steps(self) -> int:
        """First steps that stay out of the figures; the others are whole periods, at least one."""
        least = min(SETTLING_STEPS, self.steps - self.period)
        return least + (self.steps - least) % self.period

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        progress = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        return self.learning_rate * (0.55 + 0.45 * math.cos(math.pi * progress))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What happened, step by step.

    Attributes:
        losses: the mean over all ranks, in nats per token; NaN where a rank's was.
        step_s: seconds, each from the end of the step before.
        skipped_steps: steps that no rank took.
        traffic: of all steps after the settling ones.
    """

    losses: tuple[float, ...]
    step_s: tuple[float, ...]
    skipped_steps: int
    traffic: Traffic


def train(
    model: nn.Module,
    batches: Batches,
    schedule: Schedule,
    *,
    device: torch.device,
    on_step: Callable[[int, float, float], None],
) -> Trace:
    """Train a model that ``tw.shard`` returned. A collective call.

    Args:
        model: wrapped, on ``device``.
        batches: this rank's.
        schedule: the same on every rank.
        device: where batches go.
        on_step: told (step, mean loss, seconds) after every step.

    Raises:
        RankError: too many steps in a row were not finite.
    """
    model.train()
    # fused: one pass over the states instead of a dozen; takes sharded parameters as they are
    optimizer = torch.optim.AdamW(model.parameters(), lr=schedule.learning_rate, fused=True)
    finite, meter = FiniteCheck(), TrafficMeter(model)
    losses: list[float] = []
    step_s: list[float] = []
    skipped_steps = 0
    for step in range(schedule.steps):
        if step == schedule.settling_steps:
            meter.start()
        if step in (0, schedule.settling_steps):
            begin = _now(device)
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate_at(step)
        loss = next_token_loss(model, batches.train(step).to(device))
        torch.autograd.backward(loss)
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        agreement = finite.agree(loss, gradients)
        if agreement.take_step:
            if schedule.clip_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), schedule.clip_norm)
            optimizer.step()
        else:
            tw.skip_step(model)
            skipped_steps += 1
        optimizer.zero_grad()
        end = _now(device)
        losses.append(agreement.mean_loss)
        step_s.append(end - begin)
        begin = end
        on_step(step, losses[-1], step_s[-1])
    return Trace(
        losses=tuple(losses),
        step_s=tuple(step_s),
        skipped_steps=skipped_steps,
        traffic=meter.stop(),
    )


def validate(model: nn.Module, batches: Batches, *, device: torch.device) -> float:
    """The mean loss on held-out text over all ranks, in nats per token. A collective call.

    The model is seen as training sees it: through the recipe's own forward.
    """
    model.eval()
    losses = []
    with torch.no_grad():
        for tokens in batches.validation():
            losses.append(next_token_loss(model, tokens.to(device)).double())
    mean = torch.stack(losses).mean()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def _now(device: torch.device) -> float:
    """The clock, read when the device has done what was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
