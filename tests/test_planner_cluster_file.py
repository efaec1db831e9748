"""Cluster files: what is said of a key, a count, or a table that cannot be."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from clear_sentence import check_clear
from planner_files import CLUSTER, toml
from thinwire.errors import ConfigError
from thinwire.planner.hardware import OVERHEADS
from thinwire.planner.request import ClusterRequest

KEYS = {"unit_s", "parameter_s", "step_s"}


@pytest.mark.parametrize("source", ["calibrated", "calibrated: two cores", "given", None])
@pytest.mark.parametrize(
    "tables",
    [
        {"unit_s": {"stock": 1.0}},
        {"step_s": {"stock": 1.0, "compressed": 0.5}},
        {name: dict.fromkeys(OVERHEADS[1:], 0.1) for name in KEYS},
        {"parameter_s": dict.fromkeys(OVERHEADS, 0.1)},
    ],
    ids=str,
)
def test_what_is_measured_together_is_asked_for_by_name(
    source: str | None, tables: dict[str, dict[str, float]], tmp_path: Path
) -> None:
    """Only a file that says so is spoken of as calibrated."""
    file = tmp_path / "cluster.toml"
    words = {} if source is None else {"source": source}
    file.write_text(f"device = {toml({**tables, **words})}")
    lacking = {kind for table in tables.values() for kind in OVERHEADS if kind not in table}
    if source in ("given", None) and not lacking:
        assert ClusterRequest(file=file).cluster()
        return
    with pytest.raises(ConfigError) as raised:
        ClusterRequest(file=file).cluster()
    told = str(raised.value)
    check_clear(told, f"cluster file {file}: device")
    assert ("calibrate" in told) == (source not in ("given", None))
    assert all(kind in told for kind in lacking)
    if source not in ("given", None):
        assert all(name in told for name in KEYS - set(tables))


@pytest.mark.parametrize("part", ["cluster", "device", "link", "backend", "host"])
def test_a_wrong_key_is_answered_with_every_right_one(part: str, tmp_path: Path) -> None:
    """All that the whole file above has in that table, and each of them can be written."""
    file = tmp_path / "cluster.toml"
    file.write_text(f"{part} = {{ prtocol = 1 }}")
    with pytest.raises(ConfigError, match="'prtocol' is not one of ") as raised:
        ClusterRequest(file=file).cluster()
    listed = str(raised.value).split("is not one of ")[1].split(", ")
    assert set(tomllib.loads(CLUSTER)[part]) <= set(listed)
    assert len(set(listed)) == len(listed)
    for key in listed:
        file.write_text(f"{part} = {{ {key} = [[[]]] }}")
        with pytest.raises(ConfigError, match=f"{part}[^:]*: {key}") as raised:
            ClusterRequest(file=file).cluster()
        assert "is not one of" not in str(raised.value)


@pytest.mark.parametrize("count", ["hosts", "ranks_per_host"])
@pytest.mark.parametrize("value", ['"4"', "true", "[4]", "4.0", "0", "-1", "{}", "nan", "1e999"])
def test_a_count_is_asked_for_as_a_whole_number(count: str, value: str, tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(f"[cluster]\n{count} = {value}")
    with pytest.raises(
        ConfigError, match=f"cluster: {count} = .* is not a whole number above zero"
    ):
        ClusterRequest(file=file).cluster()
