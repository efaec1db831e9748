"""What a training needs against the published figures, and what a machine has."""

from __future__ import annotations

from pathlib import Path

import pytest

from thinwire.errors import ConfigError
from thinwire.train.host_memory import MemoryNeed, available_bytes, check_fits

MILLION = 1_000_000


@pytest.mark.parametrize(
    ("stage", "bytes_per_parameter"),
    [(0, 16), (1, 8 + 8 / 4), (2, 4 + 16 / 4), (3, 16 / 4)],
)
def test_states_follow_the_stage(stage: int, bytes_per_parameter: float) -> None:
    """fp32 throughout, so the terms of arXiv 1910.02054 section 5 with K = 8 and 4-byte halves."""
    need = MemoryNeed(parameters=MILLION, stage=stage, world=4)
    assert need.states_bytes == bytes_per_parameter * MILLION


def test_the_start_holds_the_whole_model_beside_the_shard() -> None:
    need = MemoryNeed(parameters=100 * MILLION, stage=3, world=8)
    assert need.start_bytes == 4 * 100 * MILLION * (1 + 1 / 8)
    assert need.start_bytes > need.states_bytes
    assert need.total_bytes > 8 * need.start_bytes


def test_what_fits_passes_and_what_does_not_says_by_how_much() -> None:
    need = MemoryNeed(parameters=1000 * MILLION, stage=0, world=2)
    check_fits(need, available=need.total_bytes)
    with pytest.raises(ConfigError, match=r"2\.5 GB more than") as raised:
        check_fits(need, available=need.total_bytes - 2_500_000_000)
    assert "smaller --model or fewer ranks" in str(raised.value)


def root_with(folder: Path, **files: str) -> Path:
    for name, content in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


MEMINFO = "MemTotal: 100 kB\nMemAvailable:    64 kB\n"


def test_the_machine_limits_without_a_group(tmp_path: Path) -> None:
    assert available_bytes(root_with(tmp_path, proc__meminfo=MEMINFO)) == 64 * 1024


def test_a_group_of_version_2_limits_what_its_cache_does_not_give_back(tmp_path: Path) -> None:
    root = root_with(tmp_path, proc__meminfo=MEMINFO)
    group = root / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("50000\n")
    (group / "memory.current").write_text("40000\n")
    (group / "memory.stat").write_text("anon 1\ninactive_file 3000\n")
    assert available_bytes(root) == 13000
    (group / "memory.max").write_text("max\n")
    assert available_bytes(root) == 64 * 1024


def test_a_group_of_version_1_limits_too(tmp_path: Path) -> None:
    root = root_with(tmp_path, proc__meminfo=MEMINFO)
    group = root / "sys/fs/cgroup/memory"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text("30000\n")
    (group / "memory.usage_in_bytes").write_text("35000\n")
    assert available_bytes(root) == 0


def test_a_system_that_does_not_tell_is_unknown(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) is None


def test_this_machine_tells() -> None:
    available = available_bytes()
    assert available is not None
    assert available > 0
