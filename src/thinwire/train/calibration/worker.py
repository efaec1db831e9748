"""One rank of a calibration: ``python -m thinwire.train.calibration.worker JOB.json``.

All ranks measure the same things at the same time, round after round. Rank 0 tells what it is about
to measure, one line each; every rank leaves its samples in a file.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from thinwire.errors import ConfigError, ThinwireError
from thinwire.train.atomic_file import write_text_atomically
from thinwire.train.calibration.arithmetic import arithmetic_cases
from thinwire.train.calibration.clock import Case, time_together
from thinwire.train.calibration.codecs import codec_cases
from thinwire.train.calibration.sample import Sample, write_samples
from thinwire.train.calibration.steps import tiny_runs
from thinwire.train.calibration.wires import wire_cases

__all__ = ["CalibrationJob", "main", "measure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationJob:
    """What a rank is told to measure.

    Attributes:
        rounds: how often everything is measured.
        shortest_s: that one measurement lasts.
        link_bit_per_s: of every host; ``None``: not shaped.
        results: an existing folder; every rank writes ``rank-R.json`` there.
    """

    rounds: int
    shortest_s: float
    link_bit_per_s: float | None
    results: Path

    def write(self, path: Path) -> None:
        """Write the job as JSON."""
        content = {**dataclasses.asdict(self), "results": str(self.results)}
        write_text_atomically(path, json.dumps(content))

    @classmethod
    def read(cls, path: Path) -> CalibrationJob:
        """The job that :meth:`write` wrote.

        Raises:
            ConfigError: the file cannot be read or is no job.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return cls(**{**content, "results": Path(content["results"])})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"job {path}: not a readable calibration job ({error})") from error

    def result_file(self, rank: int) -> Path:
        """Where a rank leaves its samples."""
        return self.results / f"rank-{rank}.json"


def main(arguments: list[str]) -> int:
    """Run one rank and return the exit code."""
    if len(arguments) != 1:
        sys.stderr.write("thinwire: error: usage: thinwire.train.calibration.worker JOB.json\n")
        return 2
    try:
        job = CalibrationJob.read(Path(arguments[0]))
        torch.set_num_threads(1)  # as ranks train: they share the processors
        dist.init_process_group("gloo")
        try:
            samples = measure(job, tell=_tell if dist.get_rank() == 0 else _tell_nothing)
            write_samples(job.result_file(dist.get_rank()), samples)
            dist.barrier()  # who leaves early tears down connections that others still read from
        finally:
            dist.destroy_process_group()
    except ThinwireError as error:
        sys.stderr.write(f"thinwire: error: {error}\n")
        return 1
    return 0


def measure(job: CalibrationJob, *, tell: Callable[[str], None]) -> list[Sample]:
    """Measure everything. A collective call.

    Args:
        job: what to measure.
        tell: told in words what comes next.
    """
    torch.manual_seed(0)
    groups: dict[str, list[Case]] = {
        "arithmetic": list(arithmetic_cases()),
        "codecs": list(codec_cases()),
        "messages": list(wire_cases(job.link_bit_per_s)),
    }
    runs = list(tiny_runs()) if dist.get_world_size() > 1 else []
    seconds: dict[int, list[float]] = {}
    cases: list[Case] = [case for group in groups.values() for case in group]
    for number in range(1, job.rounds + 1):
        for name, group in groups.items():
            tell(f"round {number} of {job.rounds}: {name}")
            for case in group:
                seconds.setdefault(id(case), []).append(time_together(case, job.shortest_s))
        tell(f"round {number} of {job.rounds}: training steps")
        for run in runs:
            seconds.setdefault(id(run), []).append(run.step_s())
    samples = [
        Sample(figure=case.figure, case=case.case, size=case.size, seconds=tuple(seconds[id(case)]))
        for case in cases
    ]
    samples += [
        Sample(figure="step", case=run.recipe, size=run.layers, seconds=tuple(seconds[id(run)]))
        for run in runs
    ]
    return samples


def _tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _tell_nothing(text: str) -> None:
    """The progress of other ranks is rank 0's."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
