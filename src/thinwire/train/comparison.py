"""The outcome of a comparison, as data: what the table, the page and the JSON document show.

Comparison   one model, one text, one seed
└── Setting  one network: the link as requested and as measured
    └── Run  one recipe: times, bytes, losses, memory
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from thinwire.train.job import RankResult

__all__ = ["CollectiveTraffic", "Comparison", "Link", "Run", "Setting", "Spread"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The median of some measurements, and the least and the greatest."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of at least one value."""
        return cls(median=statistics.median(values), min=min(values), max=max(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTraffic:
    """What one kind of collective sends per rank and step, the mean over ranks.

    Attributes:
        name: ``"all_gather"``, ``"reduce_scatter"`` or ``"all_reduce"``.
        within_bytes: to ranks on the same host.
        across_bytes: to ranks on other hosts.
        formats: in which its payloads are written.
    """

    name: str
    within_bytes: float
    across_bytes: float
    formats: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One recipe in one setting. Bytes and times are per step, without the settling steps.

    Attributes:
        recipe: its name, with overrides.
        step_s: seconds per step, as rank 0 saw them; of a recipe with local steps, the means of the
            steps from one meeting of the ranks to the next.
        measured: of how many steps, or such means, that is the spread.
        step_times_s: of every step, the settling ones included.
        settling_steps: first steps that the figures leave out.
        losses: per step, mean over ranks, nats per token; ``None`` where not finite.
        collectives: bytes by collective.
        nic_bytes_per_rank: counted by the hosts' interfaces, headers included; a host's bytes are
            shared out evenly over its ranks. ``None`` where they are not counted.
        validation_loss: on held-out text, nats per token.
        peak_bytes: of the rank that used most memory.
        skipped_steps: steps that were not taken, because a gradient was not finite.
        parameters: of the model.
        predicted_step_s: the plan's prediction; ``None`` without one.
    """

    recipe: str
    step_s: Spread
    measured: int
    step_times_s: tuple[float, ...]
    settling_steps: int
    losses: tuple[float | None, ...]
    collectives: tuple[CollectiveTraffic, ...]
    nic_bytes_per_rank: float | None
    validation_loss: float | None
    peak_bytes: int
    skipped_steps: int
    parameters: int
    predicted_step_s: float | None

    @property
    def across_bytes_per_rank(self) -> float:
        """Bytes to other hosts, the mean over ranks."""
        return sum(item.across_bytes for item in self.collectives)

    @property
    def sent_bytes_per_rank(self) -> float:
        """Bytes to all other ranks, the mean over ranks."""
        return sum(item.within_bytes + item.across_bytes for item in self.collectives)

    @property
    def bits_per_parameter(self) -> float:
        """Bits that a rank sends across hosts per parameter and step."""
        return 8 * self.across_bytes_per_rank / self.parameters

    @property
    def train_loss(self) -> float | None:
        """The mean of the last tenth of the steps; one step's loss says more about its batch."""
        last = self.losses[-max(1, len(self.losses) // 10) :]
        finite = [loss for loss in last if loss is not None]
        return statistics.fmean(finite) if len(finite) == len(last) else None

    @classmethod
    def from_ranks(
        cls,
        recipe: str,
        ranks: Sequence[RankResult],
        *,
        ranks_per_host: int,
        predicted_step_s: float | None,
        period: int = 1,
    ) -> Run:
        """Sum up what the ranks of one training measured, in rank order.

        Args:
            recipe: its name.
            ranks: what each measured.
            ranks_per_host: how many share a host's interface.
            predicted_step_s: seconds, if they were foretold.
            period: steps in which the recipe does once all that it does.
        """
        first = ranks[0]
        counted_s = first.step_s[first.settling_steps :]
        rounds_s = [statistics.fmean(some) for some in _cut(counted_s, period)]
        nic_bytes = [rank.nic_bytes for rank in ranks if rank.nic_bytes is not None]
        return cls(
            recipe=recipe,
            step_s=Spread.of(rounds_s),
            measured=len(rounds_s),
            step_times_s=first.step_s,
            settling_steps=first.settling_steps,
            losses=first.losses,
            collectives=_mean_traffic(ranks),
            nic_bytes_per_rank=(
                statistics.fmean(nic_bytes) / ranks_per_host / first.counted_steps
                if len(nic_bytes) == len(ranks)
                else None
            ),
            validation_loss=first.validation_loss,
            peak_bytes=max(rank.peak_bytes for rank in ranks),
            skipped_steps=first.skipped_steps,
            parameters=first.parameters,
            predicted_step_s=predicted_step_s,
        )

    def to_json(self) -> dict[str, Any]:
        """One entry of ``runs``; bytes and seconds are per step."""
        return {
            "recipe": self.recipe,
            "step_s": {
                "median": self.step_s.median,
                "min": self.step_s.min,
                "max": self.step_s.max,
            },
            "sent_bytes_per_rank": self.sent_bytes_per_rank,
            "across_bytes_per_rank": self.across_bytes_per_rank,
            "nic_bytes_per_rank": self.nic_bytes_per_rank,
            "bits_per_parameter": self.bits_per_parameter,
            "train_loss": self.train_loss,
            "validation_loss": self.validation_loss,
            "peak_bytes": self.peak_bytes,
            "predicted_step_s": self.predicted_step_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A shaped link: the rate that was asked for, and the rate that was measured."""

    requested_bit_per_s: float
    measured_bit_per_s: float

    def to_json(self) -> dict[str, float]:
        """Both rates."""
        return {
            "requested_bit_per_s": self.requested_bit_per_s,
            "measured_bit_per_s": self.measured_bit_per_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """All recipes over one network.

    Attributes:
        link: ``None`` where nothing shaped it.
        ranks_per_host: how many ranks share a host's link.
        notice: what the network could not do, in a sentence.
        runs: in the order asked for; the first is the one that others are held against.
    """

    link: Link | None
    ranks_per_host: int
    notice: str | None
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The same training under several recipes.

    Attributes:
        hosts: number of hosts.
        world: number of ranks, on all hosts together.
        model: as it was asked for.
        parameters: of the model.
        text: where the text came from.
        seq_len: tokens per sequence.
        micro_batch: sequences per rank and step.
        steps: of every run.
        seed: of the weights and of the data order.
        main: the setting that was asked for.
        unshaped: the same recipes without a shaped link, when that was asked for too.
    """

    hosts: int
    world: int
    model: str
    parameters: int
    text: str
    seq_len: int
    micro_batch: int
    steps: int
    seed: int
    main: Setting
    unshaped: Setting | None

    @property
    def settings(self) -> tuple[Setting, ...]:
        """The settings that were run, in order."""
        return (self.main,) if self.unshaped is None else (self.main, self.unshaped)

    def to_json(self) -> dict[str, Any]:
        """The document that ``thinwire compare --json`` prints.

        ``unshaped`` holds the runs without a shaped link and is there only if they were asked for.
        """
        document: dict[str, Any] = {
            "world": self.world,
            "hosts": self.hosts,
            "parameters": self.parameters,
            **_setting_to_json(self.main),
        }
        if self.unshaped is not None:
            document["unshaped"] = _setting_to_json(self.unshaped)
        return document


def _cut(values: Sequence[float], length: int) -> list[Sequence[float]]:
    return [values[start : start + length] for start in range(0, len(values), length)]


def _setting_to_json(setting: Setting) -> dict[str, Any]:
    return {
        "link": None if setting.link is None else setting.link.to_json(),
        "runs": [run.to_json() for run in setting.runs],
    }


def _mean_traffic(ranks: Sequence[RankResult]) -> tuple[CollectiveTraffic, ...]:
    """Bytes per step and collective, the mean over the ranks."""
    per = len(ranks) * ranks[0].counted_steps
    names = sorted({entry["name"] for rank in ranks for entry in rank.collectives})
    entries = {
        name: [entry for rank in ranks for entry in rank.collectives if entry["name"] == name]
        for name in names
    }
    return tuple(
        CollectiveTraffic(
            name=name,
            within_bytes=sum(entry["within_bytes"] for entry in same) / per,
            across_bytes=sum(entry["across_bytes"] for entry in same) / per,
            formats=tuple(sorted({fmt for entry in same for fmt in entry["formats"]})),
        )
        for name, same in entries.items()
    )
