"""A calibration from request to outcome: build the network, measure on it, fit, judge.

Everything is measured in several rounds, and every round is fitted by itself. Where the rounds
disagree by more than a tolerance, something else ran on the machine, and no number can be
trusted.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from thinwire.atomic_file import write_text_atomically
from thinwire.errors import ConfigError, InputError
from thinwire.lab import Layout, check_link, launch, measure_link, open_network
from thinwire.planner.hardware_file import load_device
from thinwire.quoting import quoted
from thinwire.table_file import file_label
from thinwire.train.calibration.hardware import Hardware, fit_hardware, format_tables
from thinwire.train.calibration.measuring import CalibrationJob
from thinwire.train.calibration.sample import Sample, read_samples, slowest
from thinwire.train.job import DEVICES
from thinwire.train.machine import describe_machine

__all__ = ["Calibration", "CalibrationRequest", "Figure", "calibrate", "judge"]

FEWEST_ROUNDS = 2
TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationRequest:
    """What to calibrate.

    Attributes:
        layout: hosts, ranks on each, the rate of their links.
        rounds: how often everything is measured.
        shortest_s: that one measurement lasts.
        tolerance: how far the rounds may be apart, as a share of their median.
        device: ``"cpu"`` or ``"cuda"``.
        preset: of the device, for what is not measured: memory, allocator, context.
        disk: a folder on the disk to measure.

    Raises:
        ConfigError: too few rounds, a number that is not above 0, no such device or preset, or one
            of another kind.
    """

    layout: Layout
    rounds: int = 3
    shortest_s: float = 0.02
    tolerance: float = 0.3
    device: str = "cpu"
    preset: str = "cpu"
    disk: Path = Path()

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise ConfigError(f"device: {quoted(self.device)} is not one of {', '.join(DEVICES)}")
        if not os.path.isdir(self.disk):  # not Path's, which raises for a path that is too long
            label = file_label("disk", self.disk)
            raise ConfigError(f"{label}: no such folder; name one on the disk to measure")
        if (load_device(self.preset).kind == "cpu") != (self.device == "cpu"):
            raise ConfigError(
                f"preset {self.preset} is not for device {self.device}: for cuda name the preset "
                "of the device, such as a100-40gb, and for cpu leave it out"
            )
        if self.rounds < FEWEST_ROUNDS:
            raise ConfigError(
                f"{self.rounds} rounds: repeats are what a calibration is judged by; give "
                f"{FEWEST_ROUNDS} or more"
            )
        for name in ("shortest_s", "tolerance"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} = {getattr(self, name)}: must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A fitted number, and how far the rounds are apart.

    Attributes:
        name: what it is, with its unit.
        value: fitted on the medians of all rounds.
        scatter: largest less smallest of the rounds' own fits, as a share of their median.
    """

    name: str
    value: float
    scatter: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What was found.

    Attributes:
        hardware: tables of a cluster file, and residuals.
        figures: the rates on which the rounds must agree.
        tolerance: how far they may be apart.
        source: of the numbers, in words.
        notice: what the network could not do, in a sentence.
    """

    hardware: Hardware
    figures: tuple[Figure, ...]
    tolerance: float
    source: str
    notice: str | None

    @property
    def unsteady(self) -> tuple[Figure, ...]:
        """The figures that scatter too much, the worst first."""
        loose = [figure for figure in self.figures if figure.scatter > self.tolerance]
        return tuple(sorted(loose, key=lambda figure: -figure.scatter))

    def write(self, path: Path) -> None:
        """Write the cluster file, whole or not at all.

        Raises:
            InputError: the file cannot be written.
        """
        try:
            write_text_atomically(path, format_tables(self.hardware.tables, source=self.source))
        except OSError as error:
            raise InputError(
                f"hardware file {path}: cannot be written ({error.strerror}); give a file in a "
                "folder that you may write to"
            ) from error

    def to_json(self) -> dict[str, Any]:
        """The document that ``thinwire calibrate --json`` prints."""
        return {
            "steady": not self.unsteady,
            "tolerance": self.tolerance,
            "source": self.source,
            "figures": [
                {"name": item.name, "value": item.value, "scatter": item.scatter}
                for item in self.figures
            ],
            "residuals": [
                {
                    "part": item.part,
                    "rows": item.rows,
                    "median": item.median,
                    "largest": item.largest,
                }
                for item in self.hardware.residuals
            ],
            "tables": self.hardware.tables,
        }


def calibrate(request: CalibrationRequest, *, tell: Callable[[str], None]) -> Calibration:
    """Measure this machine and its links; takes some tens of seconds.

    Args:
        request: what to measure.
        tell: told in words what happens.

    Raises:
        ConfigError: the layout cannot be built.
        LabError: the link's measured rate is not the requested one.
        RankError: a rank failed.
    """
    layout = request.layout
    if request.device == "cuda" and layout.link_bit_per_s is not None:
        raise ConfigError(
            "--device cuda takes no --link: between the devices of one machine NCCL goes round any "
            "shaped link"
        )
    with (
        tempfile.TemporaryDirectory(prefix="thinwire-") as name,
        open_network(layout.hosts, layout.ranks_per_host, layout.link_bit_per_s) as network,
    ):
        if network.notice is not None:
            tell(network.notice)
        rates = measure_link(network)
        check_link(network.link_bit_per_s, rates)
        shaped = network.link_bit_per_s is not None and rates is not None
        job = CalibrationJob(
            rounds=request.rounds,
            shortest_s=request.shortest_s,
            link_bit_per_s=network.link_bit_per_s,
            device=request.device,
            disk=request.disk.resolve(),
            results=Path(name),
        )
        job_file = job.results / "job.json"
        job.write(job_file)
        launch(
            network,
            [sys.executable, "-m", "thinwire.train.calibration.worker", str(job_file)],
            on_line=lambda rank, line: tell(line) if rank == 0 else None,
            timeout_s=TIMEOUT_S,
        )
        ranks = [read_samples(job.result_file(rank)) for rank in range(layout.world_size)]
        return judge(
            slowest(ranks),
            request,
            link_bit_per_s=rates.bit_per_s if shaped and rates is not None else None,
            notice=network.notice,
        )


def judge(
    samples: Sequence[Sample],
    request: CalibrationRequest,
    *,
    link_bit_per_s: float | None,
    notice: str | None = None,
) -> Calibration:
    """Fit all rounds together, and each by itself.

    Args:
        samples: of the slowest rank.
        request: what was measured.
        link_bit_per_s: as measured; ``None``: not shaped.
        notice: see :class:`Calibration`.
    """
    layout = request.layout

    def fitted(chosen: Sequence[Sample]) -> Hardware:
        return fit_hardware(chosen, layout, preset=request.preset, link_bit_per_s=link_bit_per_s)

    hardware = fitted(samples)
    rounds = [
        fitted([sample.of_round(index) for sample in samples]).figures()
        for index in range(request.rounds)
    ]
    return Calibration(
        hardware=hardware,
        figures=tuple(
            Figure(name=name, value=value, scatter=_scatter([found[name] for found in rounds]))
            for name, value in hardware.figures().items()
        ),
        tolerance=request.tolerance,
        source=_source(layout),
        notice=notice,
    )


def _scatter(values: Sequence[float]) -> float:
    return (max(values) - min(values)) / statistics.median(values)


def _source(layout: Layout) -> str:
    machine = describe_machine()
    day = datetime.now(tz=UTC).date().isoformat()
    return (
        f"calibrated: {day}, {layout.hosts} hosts of {layout.ranks_per_host} ranks on "
        f"{machine['processor']}, torch {machine['torch']}"
    )
