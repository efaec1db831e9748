"""A calibration by the ranks that torchrun started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from thinwire.cli.app import main
from thinwire.errors import ConfigError
from thinwire.planner.request import ClusterRequest
from thinwire.train.calibration.joined import torchrun_layout

LAUNCHED = {"TORCHELASTIC_RUN_ID": "a run", "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "2"}


def test_torchrun_says_how_many_hosts_there_are() -> None:
    layout = torchrun_layout({**LAUNCHED, "GROUP_WORLD_SIZE": "3"})
    assert layout is not None
    assert (layout.hosts, layout.ranks_per_host) == (3, 2)
    assert torchrun_layout({}) is None


def test_hosts_of_unequal_size_are_refused() -> None:
    with pytest.raises(ConfigError, match="as many ranks on every host"):
        torchrun_layout({**LAUNCHED, "GROUP_WORLD_SIZE": "2"})


def test_a_lab_under_torchrun_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name, value in {**LAUNCHED, "GROUP_WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    assert main(["calibrate", "--hosts", "2", "--output", str(tmp_path / "a.toml")]) == 2
    assert "leave them out" in capsys.readouterr().err


# the program, with measurements too short to mean anything
SHORT = """
import functools
import sys
from thinwire.cli.app import main
from thinwire.train.calibration import calibration
calibration.CalibrationRequest = functools.partial(calibration.CalibrationRequest, shortest_s=1e-4)
sys.exit(main(["calibrate", *sys.argv[1:]]))
"""


def test_the_ranks_of_torchrun_measure_and_the_first_writes(tmp_path: Path) -> None:
    """The whole way; ranks that share two busy cores agree on nothing, so all is tolerated."""
    file = tmp_path / "written" / "hardware.toml"
    program = tmp_path / "short.py"
    program.write_text(SHORT)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [
            *(*launcher, "--nproc-per-node", "2", str(program)),
            *("--output", str(file), "--rounds", "2", "--tolerance", "1e9"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("hardware file") == 1
    cluster = ClusterRequest(file=file).cluster()
    assert (cluster.hosts, cluster.ranks_per_host) == (1, 2)
    assert cluster.host.disk_bytes_per_s is not None
    assert cluster.host.sources["disk_bytes_per_s"].startswith("calibrated: ")
    # nothing is left beside the file
    assert list(file.parent.iterdir()) == [file]
