"""``thinwire calibrate``: what it writes, what it prints, and when it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from made_samples import LINK_BYTES_PER_S, made_samples
from thinwire.cli.app import main
from thinwire.planner.request import ClusterRequest
from thinwire.train.calibration import calibration
from thinwire.train.calibration.calibration import Calibration, CalibrationRequest, judge


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How much slower each round is than the first; a test may change it."""
    rounds = [1.0, 1.0, 1.0]

    def made(request: CalibrationRequest, *, tell: object) -> Calibration:
        assert callable(tell)
        tell("round 1 of 3: arithmetic")
        samples = made_samples(request.layout, rounds=rounds)
        return judge(samples, request, link_bit_per_s=8 * LINK_BYTES_PER_S)

    monkeypatch.setattr(calibration, "calibrate", made)
    return rounds


def test_writes_a_file_that_plan_reads(
    apart: list[float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del apart
    file = tmp_path / "deep" / "lab.toml"
    assert main(["calibrate", "--hosts", "3", "--link", "200mbit", "--output", str(file)]) == 0
    assert ClusterRequest(file=file).cluster().hosts == 3
    printed = capsys.readouterr()
    assert "AdamW" in printed.out
    assert f"hardware file: {file}" in printed.out
    assert "round 1 of 3" in printed.err
    plan = ["plan", "--model", "gpt:2x64x2", "--seq", "64", "--cluster", str(file), "--json"]
    assert main(plan) == 0
    assert json.loads(capsys.readouterr().out)["choice"]


def test_programs_get_one_document(
    apart: list[float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del apart
    assert main(["calibrate", "--hosts", "2", "--output", str(tmp_path / "a.toml"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["steady"] is True
    assert {"figures", "residuals", "tables", "source", "tolerance"} <= set(document)


def test_repeats_that_disagree_are_refused(
    apart: list[float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    apart[1] = 3.0
    file = tmp_path / "lab.toml"
    assert main(["calibrate", "--hosts", "2", "--output", str(file)]) == 4
    assert not file.exists()
    error = capsys.readouterr().err
    assert "apart" in error
    assert "calibrate again" in error


def test_an_old_file_survives_a_refusal(apart: list[float], tmp_path: Path) -> None:
    apart[1] = 3.0
    file = tmp_path / "lab.toml"
    file.write_text("old")
    assert main(["calibrate", "--hosts", "2", "--output", str(file)]) == 4
    assert file.read_text() == "old"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--link", "fast"], "fast"),
        (["--link", "1bit"], "1mbit"),
        (["--rounds", "1"], "rounds"),
        (["--tolerance", "0"], "tolerance"),
        (["--hosts", "0"], "hosts"),
    ],
)
def test_wrong_usage_gets_one_sentence(
    apart: list[float],
    options: list[str],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    del apart
    assert main(["calibrate", "--output", str(tmp_path / "a.toml"), *options]) == 2
    error = capsys.readouterr().err
    assert words in error.lower().replace(" ", "")
    assert error.count("\n") == 1


def test_a_file_that_cannot_be_written_is_refused_first(
    apart: list[float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del apart
    assert main(["calibrate", "--output", str(tmp_path)]) == 2
    assert "folder" in capsys.readouterr().err
