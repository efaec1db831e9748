"""What a rank measured, as plain data that travels as a JSON file."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from thinwire.atomic_file import write_text_atomically
from thinwire.errors import ConfigError, RankError

__all__ = ["Sample", "read_samples", "slowest", "write_samples"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Seconds of one action at one size, measured once in every round.

    Attributes:
        figure: what is measured: ``"copy"``, ``"matmul"``, ``"exchange"``, ...
        case: which kind of it: a dtype, a format; empty where there is one kind.
        size: of the action, in the figure's own measure; above 0.
        seconds: of one action, a value for every round.

    Raises:
        ConfigError: there is no measurement, or one that no clock gives.
    """

    figure: str
    case: str
    size: float
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.seconds or min(self.seconds) <= 0 or self.size <= 0:
            raise ConfigError(
                f"sample {self.figure} {self.case}: {self.seconds} s at size {self.size} is no "
                "measurement; sizes and times are above 0"
            )

    @property
    def median_s(self) -> float:
        """Over the rounds."""
        return statistics.median(self.seconds)

    def of_round(self, index: int) -> Sample:
        """The sample with one round only."""
        return dataclasses.replace(self, seconds=(self.seconds[index],))


def write_samples(path: Path, samples: Sequence[Sample]) -> None:
    """Write what a rank measured, whole or not at all."""
    write_text_atomically(path, json.dumps([dataclasses.asdict(sample) for sample in samples]))


def read_samples(path: Path) -> tuple[Sample, ...]:
    """What :func:`write_samples` wrote.

    Raises:
        RankError: the file cannot be read or holds something else.
    """
    try:
        return tuple(
            Sample(**{**entry, "seconds": tuple(entry["seconds"])})
            for entry in json.loads(path.read_text(encoding="utf-8"))
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RankError(f"samples {path}: not what a rank measured ({error})") from error


def slowest(ranks: Sequence[Sequence[Sample]]) -> tuple[Sample, ...]:
    """Round by round the slowest rank's seconds: the one for which the others wait.

    Args:
        ranks: the samples of every rank, in the same order.

    Raises:
        RankError: the ranks did not measure the same.
    """
    merged = []
    for samples in zip(*ranks, strict=True):
        first = samples[0]
        keys = {(sample.figure, sample.case, sample.size) for sample in samples}
        if len(keys) != 1:
            raise RankError(f"the ranks measured different things: {sorted(keys)}")
        rounds = zip(*(sample.seconds for sample in samples), strict=True)
        merged.append(dataclasses.replace(first, seconds=tuple(max(times) for times in rounds)))
    return tuple(merged)
