"""Jobs and results survive their files; wrong ones are refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from thinwire.errors import ConfigError
from thinwire.train.corpus import Corpus
from thinwire.train.job import RankResult, TrainingJob


def make_job(folder: Path, **changes: Any) -> TrainingJob:
    values: dict[str, Any] = {
        "recipe_file": folder / "recipe.toml",
        "model": "tiny",
        "corpus": Corpus(path=folder / "text", num_bytes=10, source="text"),
        "seq_len": 8,
        "micro_batch": 1,
        "steps": 3,
        "seed": 0,
        "learning_rate": 1e-3,
        "device": "cpu",
        "results": folder,
        **changes,
    }
    return TrainingJob(**values)


def make_result(**changes: Any) -> RankResult:
    values: dict[str, Any] = {
        "parameters": 100,
        "losses": (3.0, None, 2.0),
        "step_s": (0.3, 0.2, 0.1),
        "settling_steps": 2,
        "skipped_steps": 1,
        "collectives": ({"name": "all_gather", "calls": 2},),
        "nic_bytes": None,
        "validation_loss": 2.5,
        "peak_bytes": 1000,
        **changes,
    }
    return RankResult(**values)


def test_a_job_survives_its_file(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    job.write(tmp_path / "job.json")
    assert TrainingJob.read(tmp_path / "job.json") == job


def test_a_result_survives_its_file_to_the_last_bit(tmp_path: Path) -> None:
    result = make_result(losses=(0.1 + 0.2, None, 1 / 3))
    result.write(tmp_path / "rank-0.json")
    assert RankResult.read(tmp_path / "rank-0.json") == result
    assert result.counted_steps == 1


def test_a_result_with_nan_is_not_written_as_json_that_nobody_reads(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        make_result(validation_loss=float("nan")).write(tmp_path / "rank-0.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 0},
        {"steps": -1},
        {"seq_len": 0},
        {"micro_batch": 0},
        {"seed": -1},
        {"seed": 2**63},
        {"learning_rate": 0.0},
        {"learning_rate": float("nan")},
        {"learning_rate": float("inf")},
        {"device": "tpu"},
    ],
)
def test_numbers_out_of_range_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes))):
        make_job(tmp_path, **changes)


@pytest.mark.parametrize("content", [None, "{", "[]", "{}", '{"corpus": {}}'])
def test_what_is_no_job_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "job.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match="not a readable training job"):
        TrainingJob.read(path)


def test_an_unknown_field_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    make_job(tmp_path).write(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "surprise": 1}))
    with pytest.raises(ConfigError):
        TrainingJob.read(path)


def test_records_are_frozen(tmp_path: Path) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        make_job(tmp_path).steps = 5  # type: ignore[misc]
