"""One rank as a process of the lab: ``python -m thinwire.train.calibration.worker JOB.json``.

Rank 0 tells what it is about to measure, one line each; every rank leaves its samples in a file.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from thinwire.errors import ThinwireError
from thinwire.train.calibration.measuring import CalibrationJob, measure
from thinwire.train.calibration.sample import write_samples
from thinwire.train.leaving import leave
from thinwire.train.rank_device import BACKENDS

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Run one rank and return the exit code."""
    if len(arguments) != 1:
        sys.stderr.write("thinwire: error: usage: thinwire.train.calibration.worker JOB.json\n")
        return 2
    try:
        job = CalibrationJob.read(Path(arguments[0]))
        torch.set_num_threads(1)  # as ranks train: they share the processors
        dist.init_process_group(BACKENDS[job.device])
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


def _tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _tell_nothing(text: str) -> None:
    """The progress of other ranks is rank 0's."""


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
