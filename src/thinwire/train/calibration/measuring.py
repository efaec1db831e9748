"""One rank of a calibration: what it is told to measure, and how all ranks do so at once."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
import torch.distributed as dist

from thinwire.atomic_file import write_text_atomically
from thinwire.comm.topology import discover_topology
from thinwire.errors import ConfigError
from thinwire.formats import parse_format
from thinwire.sharding.kernels import prepare_in_turn
from thinwire.train.calibration.arithmetic import arithmetic_cases
from thinwire.train.calibration.clock import Case, Clock
from thinwire.train.calibration.codecs import FORMATS, codec_cases
from thinwire.train.calibration.factors import factor_cases
from thinwire.train.calibration.sample import Sample
from thinwire.train.calibration.steps import step_runs
from thinwire.train.calibration.storage import disk_cases, host_copy_cases
from thinwire.train.calibration.wires import wire_cases
from thinwire.train.rank_device import rank_device

__all__ = ["CalibrationJob", "measure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationJob:
    """What a rank is told to measure.

    Attributes:
        rounds: how often everything is measured.
        shortest_s: that one measurement lasts.
        link_bit_per_s: of every host; ``None``: not shaped.
        device: ``"cpu"`` or ``"cuda"``.
        disk: a folder on the disk to measure.
        results: an existing folder; every rank writes ``rank-R.json`` there.
    """

    rounds: int
    shortest_s: float
    link_bit_per_s: float | None
    device: str
    disk: Path
    results: Path

    def write(self, path: Path) -> None:
        """Write the job as JSON."""
        paths = {"disk": str(self.disk), "results": str(self.results)}
        content = {**dataclasses.asdict(self), **paths}
        write_text_atomically(path, json.dumps(content))

    @classmethod
    def read(cls, path: Path) -> CalibrationJob:
        """The job that :meth:`write` wrote.

        Raises:
            ConfigError: the file cannot be read or is no job.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            paths = {name: Path(content[name]) for name in ("disk", "results")}
            return cls(**{**content, **paths})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"job {path}: not a readable calibration job ({error})") from error

    def result_file(self, rank: int) -> Path:
        """Where a rank leaves its samples."""
        return self.results / f"rank-{rank}.json"


def measure(job: CalibrationJob, *, tell: Callable[[str], None]) -> list[Sample]:
    """Measure everything. A collective call.

    Args:
        job: what to measure.
        tell: told in words what comes next.
    """
    # a file without a name: nothing is left of it, however this process ends
    with tempfile.TemporaryFile(dir=job.disk, buffering=0) as disk:
        return _measure(job, disk, rank_device(job.device), tell)


def _measure(
    job: CalibrationJob, disk: BinaryIO, device: torch.device, tell: Callable[[str], None]
) -> list[Sample]:
    torch.manual_seed(0)
    if device.type == "cpu":
        tell("compiling kernels, once on this machine")
        factors = parse_format("lowrank=2").for_shape((1, 1))
        prepare_in_turn([*map(parse_format, FORMATS), factors], discover_topology())
    groups: dict[str, list[Case]] = {
        "arithmetic": list(arithmetic_cases(device)),
        "codecs": [*codec_cases(device), *factor_cases(device)],
        "storage": [*disk_cases(disk), *host_copy_cases(device)],
        "messages": list(wire_cases(job.link_bit_per_s, device)),
    }
    clock = Clock.of_this_machine(device, job.shortest_s)
    is_joined = dist.get_world_size() > 1
    runs = list(step_runs(device, job.link_bit_per_s)) if is_joined else []
    seconds: dict[int, list[float]] = {}
    cases: list[Case] = [case for group in groups.values() for case in group]
    for number in range(1, job.rounds + 1):
        for name, group in groups.items():
            tell(f"round {number} of {job.rounds}: {name}")
            for case in group:
                seconds.setdefault(id(case), []).append(clock.call_s(case))
        tell(f"round {number} of {job.rounds}: training steps")
        for run in runs:
            seconds.setdefault(id(run), []).append(run.step_s())
    samples = [
        Sample(figure=case.figure, case=case.case, size=case.size, seconds=tuple(seconds[id(case)]))
        for case in cases
    ]
    samples += [
        Sample(figure=run.figure, case=run.recipe, size=run.size, seconds=tuple(seconds[id(run)]))
        for run in runs
    ]
    return samples
