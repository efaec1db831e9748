"""What a rank is told to do, and what it hands back: plain data that travels as JSON files."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thinwire.atomic_file import write_text_atomically
from thinwire.errors import ConfigError
from thinwire.train.corpus import Corpus

__all__ = ["DEVICES", "RankResult", "TrainingJob"]

DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """One training under one recipe, the same text for every rank.

    Attributes:
        recipe_file: a TOML file, see :func:`thinwire.recipes.read_recipe`.
        model: as ``--model`` takes it.
        corpus: the text.
        seq_len: tokens per sequence.
        micro_batch: sequences per rank and step.
        steps: optimizer steps.
        seed: of the weights and of the data order.
        learning_rate: of AdamW, at its highest.
        device: ``"cpu"`` (gloo) or ``"cuda"`` (nccl, one device per rank).
        results: an existing folder; every rank writes ``rank-R.json`` there.

    Raises:
        ConfigError: a number is out of range.
    """

    recipe_file: Path
    model: str
    corpus: Corpus
    seq_len: int
    micro_batch: int
    steps: int
    seed: int
    learning_rate: float
    device: str
    results: Path

    def __post_init__(self) -> None:
        for name in ("seq_len", "micro_batch", "steps"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: {getattr(self, name)} is below 1")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed: {self.seed} is not between 0 and 2^63 - 1")
        if not 0 < self.learning_rate < float("inf"):
            raise ConfigError(f"learning_rate: {self.learning_rate} is not a positive number")
        if self.device not in DEVICES:
            raise ConfigError(f"device: {self.device!r} is not one of {', '.join(DEVICES)}")

    def write(self, path: Path) -> None:
        """Write the job as JSON, whole or not at all."""
        write_text_atomically(path, json.dumps(_plain(self), indent=2))

    @classmethod
    def read(cls, path: Path) -> TrainingJob:
        """The job that :meth:`write` wrote.

        Raises:
            ConfigError: the file cannot be read or is no job.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            corpus = content.pop("corpus")
            return cls(
                **{
                    **content,
                    "recipe_file": Path(content["recipe_file"]),
                    "results": Path(content["results"]),
                    "corpus": Corpus(**{**corpus, "path": Path(corpus["path"])}),
                }
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"job {path}: not a readable training job ({error})") from error

    def result_file(self, rank: int) -> Path:
        """Where a rank leaves its result."""
        return self.results / f"rank-{rank}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    """What one rank measured.

    Attributes:
        parameters: of the whole model; shared ones count once.
        losses: per step, in nats per token, the mean over all ranks; ``None`` where not finite.
        step_s: per step, seconds from the end of the step before.
        settling_steps: first steps, which compile kernels and fill caches; not counted below.
        skipped_steps: steps that no rank took, because a gradient was not finite.
        collectives: the ledger's entries for all steps after the settling ones.
        nic_bytes: what the host's interface sent in those steps; ``None`` where it is not counted.
        validation_loss: nats per token on held-out text, the mean over all ranks, seen through the
            recipe's own forward; ``None`` if not finite.
        peak_bytes: the most memory in use: on CPUs the process's largest resident set, Python and
            libraries included; on CUDA the allocator's peak.
    """

    parameters: int
    losses: tuple[float | None, ...]
    step_s: tuple[float, ...]
    settling_steps: int
    skipped_steps: int
    collectives: tuple[dict[str, Any], ...]
    nic_bytes: int | None
    validation_loss: float | None
    peak_bytes: int

    def write(self, path: Path) -> None:
        """Write the result as JSON, whole or not at all."""
        write_text_atomically(path, json.dumps(_plain(self), allow_nan=False))

    @classmethod
    def read(cls, path: Path) -> RankResult:
        """The result that :meth:`write` wrote."""
        content = json.loads(path.read_text(encoding="utf-8"))
        for name in ("losses", "step_s", "collectives"):
            content[name] = tuple(content[name])
        return cls(**content)

    @property
    def counted_steps(self) -> int:
        """Steps after the settling ones."""
        return len(self.step_s) - self.settling_steps


def _plain(record: TrainingJob | RankResult) -> dict[str, Any]:
    """A record's fields with paths as text."""
    return dataclasses.asdict(
        record,
        dict_factory=lambda items: {
            name: str(value) if isinstance(value, Path) else value for name, value in items
        },
    )
