"""A rank as a process: what it refuses, what it leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from test_train_job import make_job
from thinwire.recipes import format_recipe, parse_recipe
from thinwire.train import worker
from thinwire.train.corpus import Corpus
from thinwire.train.job import RankResult, TrainingJob
from thinwire.train.progress import parse_event

ALONE = {
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_WORLD_SIZE": "1",
    "GROUP_RANK": "0",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "0",  # the store takes any free port: nobody else needs to find it
    "GLOO_SOCKET_IFNAME": "lo",
}


def write_job(folder: Path, **changes: object) -> TrainingJob:
    text = folder / "text"
    text.write_bytes(b"row, row, row your boat, gently down the stream. " * 100)
    (folder / "recipe.toml").write_text(format_recipe(parse_recipe("zero3:compute=fp32")))
    corpus = Corpus(path=text, num_bytes=text.stat().st_size, source="text")
    job = make_job(folder, model="gpt:1x32x2", corpus=corpus, **changes)
    job.write(folder / "job.json")
    return job


def run_worker(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "thinwire.train.worker", str(folder / "job.json")],
        env={**os.environ, **ALONE},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_rank_tells_its_progress_and_leaves_its_result(tmp_path: Path) -> None:
    job = write_job(tmp_path)
    done = run_worker(tmp_path)
    assert done.returncode == 0, done.stderr
    events = [event for line in done.stdout.splitlines() if (event := parse_event(line))]
    result = RankResult.read(job.result_file(0))
    assert [event.step for event in events] == [0, 1, 2]
    assert [event.loss for event in events] == list(result.losses)
    assert result.parameters == 12 * 32**2 + 13 * 32 + (512 + 8 + 2) * 32
    assert result.validation_loss is not None
    # a process that has imported torch holds over 100 MB, and this model is too small to matter
    assert 100e6 < result.peak_bytes < 2e9


@pytest.mark.parametrize("arguments", [[], ["a", "b"]])
def test_wrong_usage_is_told(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert worker.main(arguments) == 2
    assert "usage" in capsys.readouterr().err


def test_an_error_is_one_line_that_the_launcher_repeats(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert worker.main([str(tmp_path / "missing.json")]) == 1
    told = capsys.readouterr().err
    assert told.startswith("thinwire: error: job ")
    assert told.count("\n") == 1


def test_a_text_that_shrank_since_the_job_was_written_is_refused(tmp_path: Path) -> None:
    write_job(tmp_path)
    (tmp_path / "text").write_bytes(b"short")
    done = run_worker(tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("thinwire: error: text ")
    assert "changed" in done.stderr
