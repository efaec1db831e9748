"""One rank as a process: ``python -m thinwire.train.worker JOB.json``.

The launcher sets the environment of torchrun (RANK, WORLD_SIZE, MASTER_ADDR, ...). Rank 0 tells its
progress on standard output, one JSON object per step; every rank leaves its result in a file. An
error that thinwire raised on purpose is one line on standard error and exit code 1.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import thinwire as tw
from thinwire.errors import ThinwireError
from thinwire.recipes import read_recipe
from thinwire.train.data import Batches
from thinwire.train.job import RankResult, TrainingJob
from thinwire.train.leaving import leave
from thinwire.train.loop import Schedule, train, validate
from thinwire.train.model_spec import parse_model
from thinwire.train.models import build_model
from thinwire.train.progress import StepEvent
from thinwire.train.rank_device import BACKENDS, rank_device

__all__ = ["main", "run_rank"]


def main(arguments: list[str]) -> int:
    """Run one rank and return the exit code."""
    if len(arguments) != 1:
        sys.stderr.write("thinwire: error: usage: thinwire.train.worker JOB.json\n")
        return 2
    try:
        job = TrainingJob.read(Path(arguments[0]))
        run_rank(job)
    except ThinwireError as error:
        sys.stderr.write(f"thinwire: error: {error}\n")
        return 1
    return 0


def run_rank(job: TrainingJob) -> None:
    """Join the world, train, validate, and leave the result.

    Raises:
        ConfigError: the job asks for what this machine or this version cannot do.
        RankError: the ranks gave up together.
    """
    device = rank_device(job.device)
    dist.init_process_group(BACKENDS[job.device])
    rank = dist.get_rank()
    try:
        result = _train_and_validate(job, device)
        result.write(job.result_file(rank))
        # a rank that leaves early tears down connections that others still read from
        dist.barrier()
    finally:
        dist.destroy_process_group()


def _train_and_validate(job: TrainingJob, device: torch.device) -> RankResult:
    batches = Batches(
        job.corpus,
        seq_len=job.seq_len,
        micro_batch=job.micro_batch,
        seed=job.seed,
        rank=dist.get_rank(),
        world=dist.get_world_size(),
    )
    spec = parse_model(job.model, seq_len=job.seq_len)
    torch.manual_seed(job.seed)  # the same weights on every rank, under every recipe
    model = build_model(spec, seq_len=job.seq_len).to(device)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    recipe = read_recipe(job.recipe_file)
    model = tw.shard(model, recipe)
    schedule = Schedule(
        steps=job.steps,
        learning_rate=job.learning_rate,
        warmup_steps=min(10, job.steps // 10),
        period=recipe.local_steps,
    )
    on_step = _tell_progress if dist.get_rank() == 0 else _tell_nothing
    trace = train(model, batches, schedule, device=device, on_step=on_step)
    return RankResult(
        parameters=parameters,
        losses=tuple(_finite_or_none(loss) for loss in trace.losses),
        step_s=trace.step_s,
        settling_steps=schedule.settling_steps,
        skipped_steps=trace.skipped_steps,
        collectives=trace.traffic.collectives,
        nic_bytes=trace.traffic.nic_bytes,
        validation_loss=_finite_or_none(validate(model, batches, device=device)),
        peak_bytes=_peak_bytes(device),
    )


def _peak_bytes(device: torch.device) -> int:
    """See :class:`RankResult`. VmHWM, for ru_maxrss would include the parent's size at fork."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == "VmHWM":
            return int(value.split()[0]) * 1024
    raise AssertionError("Linux tells every process its largest resident set")


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _tell_progress(step: int, loss: float, step_s: float) -> None:
    event = StepEvent(step=step, loss=_finite_or_none(loss), step_s=step_s)
    sys.stdout.write(event.to_line() + "\n")
    sys.stdout.flush()


def _tell_nothing(step: int, loss: float, step_s: float) -> None:
    """The progress of other ranks is rank 0's."""


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
