"""Wrong values at every place of every file that the planner reads: refused, never a traceback."""

from __future__ import annotations

import copy
import json
import time
import tomllib
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from clear_sentence import check_clear
from planner_files import CELLS, CLUSTER, CONFIG, CONFIGS, toml
from thinwire.errors import ConfigError
from thinwire.planner.hardware import OVERHEADS
from thinwire.planner.hardware_file import load_device
from thinwire.planner.models import config_workload, parse_model
from thinwire.planner.models.config import ModelConfig
from thinwire.planner.ranking import make_plan
from thinwire.planner.request import ClusterRequest, PlanRequest
from thinwire.planner.validation.lab_cells import read_lab_cells
from thinwire.planner.value_form import LARGEST, MOST_LAYERS, check_form, is_number
from thinwire.planner.workload import Workload
from thinwire.recipes import parse_recipes

# of each kind that a file can hold, an empty and a filled one
WRONG: tuple[Any, ...] = (5, 0.5, "a", "", True, [], ["a"], [[1, "a"]], {}, {"a": 1}, {"a": {}})


def kind(value: Any) -> type:
    """Numbers are one kind: an integer may stand where a float stands."""
    return float if type(value) is int else type(value)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to every value within tables and lists."""
    if path:
        yield path
    if isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(item, (*path, key))


def changed(tables: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy with another value at a path."""
    tables = copy.deepcopy(tables)
    place = tables
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return tables


def at(tables: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        tables = tables[key]
    return tables


def wrong_values(tables: Any, path: tuple[Any, ...]) -> Iterator[Any]:
    """Whatever is of another kind than what stands there; for numbers also those that are none."""
    present = at(tables, path)
    yield from (value for value in WRONG if kind(value) is not kind(present))
    if kind(present) is float:
        yield from (float("nan"), float("inf"), -float("inf"), -1, 1e300, 10**400)


def key_of(path: tuple[Any, ...]) -> str:
    """The innermost key that a message about a place must name; within a list, the list's."""
    return next(part for part in reversed(path) if isinstance(part, str))


def cluster_places() -> list[tuple[Any, ...]]:
    return list(places(tomllib.loads(CLUSTER)))


def test_the_good_files_are_good(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(CLUSTER)
    assert ClusterRequest(file=file).cluster().hosts == 2
    assert config_workload(ModelConfig("made", CONFIG), tokens=16).num_parameters > 0
    (tmp_path / "lab.toml").write_text(CLUSTER)
    (tmp_path / "cells.json").write_text(json.dumps({"comparisons": {"a lab": CELLS}}))
    assert len(read_lab_cells(tmp_path / "cells.json").cells) == 1


@pytest.mark.parametrize("path", cluster_places(), ids=str)
def test_every_place_of_a_cluster_file(path: tuple[Any, ...], tmp_path: Path) -> None:
    tables = tomllib.loads(CLUSTER)
    file = tmp_path / "cluster.toml"
    for value in (*wrong_values(tables, path), date(2020, 1, 1)):
        text = changed(tables, path, value)
        file.write_text("\n".join(f"{key} = {toml(item)}" for key, item in text.items()))
        with pytest.raises(ConfigError) as raised:
            ClusterRequest(file=file).cluster()
        check_clear(raised.value, f"cluster file {file}: {path[0]}", key_of(path))


@pytest.mark.parametrize(
    "path",
    [path for path in cluster_places() if kind(at(tomllib.loads(CLUSTER), path)) is float],
    ids=str,
)
def test_no_number_of_a_cluster_file_breaks_a_plan(path: tuple[Any, ...], tmp_path: Path) -> None:
    """What is not refused gives a plan whose document is finite, as JSON must be."""
    file = tmp_path / "cluster.toml"
    for value in (0, 5e-324, 1e-30, 1e-12, 1, 1e12, 10**9, 1e30, 1e300):
        text = changed(tomllib.loads(CLUSTER), path, value)
        file.write_text("\n".join(f"{key} = {toml(item)}" for key, item in text.items()))
        request = PlanRequest(model="tiny", seq=16, cluster=ClusterRequest(file=file))
        try:
            setting = request.setting()
        except ConfigError as error:
            check_clear(error, f"cluster file {file}: {path[0]}", key_of(path))
        else:
            made = make_plan(setting, parse_recipes("ddp,ddp_powersgd,zero3,zeropp"))
            json.dumps(made.to_json(), allow_nan=False)


@pytest.mark.parametrize("family", CONFIGS)
def test_every_place_of_a_models_config(family: str, tmp_path: Path) -> None:
    config = CONFIGS[family]
    file = tmp_path / "config.json"
    assert parse(config, file).num_layers >= 2
    for path in places(config):
        for value in wrong_values(config, path):
            with pytest.raises(ConfigError) as raised:
                parse(changed(config, path, value), file)
            check_clear(raised.value, f"model {file}: ", key_of(path))


@pytest.mark.parametrize("family", CONFIGS)
def test_no_size_of_a_model_makes_a_plan_slow(family: str, tmp_path: Path) -> None:
    """A size that is too large is refused, and any other is planned in a moment or is impossible.

    0.1 s is usual; 3 s of processor time leave room for machines under load, and not for a loop
    over a size.
    """
    config, file = CONFIGS[family], tmp_path / "config.json"
    for key, value in config.items():
        if type(value) is not int:
            continue
        for size in (MOST_LAYERS, LARGEST, LARGEST + 1):
            file.write_text(json.dumps({**config, key: size}))
            started = time.process_time()
            try:
                setting = PlanRequest(
                    model=str(file),
                    seq=16,
                    cluster=ClusterRequest(hosts=2, ranks=2, device="l4", link="1gbit"),
                ).setting()
            except ConfigError as error:
                check_clear(error, f"model {file}: ", key)
            else:
                assert size <= LARGEST
                assert make_plan(setting, parse_recipes("ddp,zero3,zeropp")).predictions
            assert time.process_time() - started < 3.0, (key, size)


def parse(config: dict[str, Any], file: Path) -> Workload:
    file.write_text(json.dumps(config))
    return parse_model(str(file), tokens=16)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("num_experts_per_tok", 5, "more than the 4 of num_local_experts"),
        ("hidden_size", 10**30, "is too large: give 1,000,000,000 or less"),
        ("num_hidden_layers", MOST_LAYERS + 1, "num_hidden_layers = 2001 is too large: give 2,000"),
    ],
)
def test_sizes_that_no_model_has(key: str, value: int, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        config_workload(ModelConfig("made", {**CONFIG, key: value}), tokens=16)


@pytest.mark.parametrize("text", ["", " ", "x" * 5000])
def test_a_text_that_is_no_path_names_no_model(text: str) -> None:
    with pytest.raises(ConfigError, match="not known; use gpt:"):
        parse_model(text, tokens=8)


@pytest.mark.parametrize("path", list(places(CELLS)), ids=str)
def test_every_place_of_a_file_of_cells(path: tuple[Any, ...], tmp_path: Path) -> None:
    (tmp_path / "lab.toml").write_text(CLUSTER)
    file = tmp_path / "cells.json"
    for value in (*wrong_values(CELLS, path), *((0,) if kind(at(CELLS, path)) is float else ())):
        file.write_text(json.dumps({"comparisons": {"a lab": changed(CELLS, path, value)}}))
        with pytest.raises(ConfigError) as raised:
            read_lab_cells(file)
        check_clear(raised.value, f"cells {file}: comparisons: a lab: ", key_of(path))


@pytest.mark.parametrize("path", [path for path in places(CELLS) if path[-1] != 0], ids=str)
def test_every_key_that_a_file_of_cells_lacks(path: tuple[Any, ...], tmp_path: Path) -> None:
    (tmp_path / "lab.toml").write_text(CLUSTER)
    cells = copy.deepcopy(CELLS)
    del at(cells, path[:-1])[path[-1]]
    file = tmp_path / "cells.json"
    file.write_text(json.dumps({"comparisons": {"a lab": cells}}))
    with pytest.raises(ConfigError, match=f"{path[-1]} is missing; give the cells.json") as raised:
        read_lab_cells(file)
    check_clear(raised.value, f"cells {file}: comparisons: a lab: ")


@pytest.mark.parametrize("content", [{}, {"comparisons": 5}, {"comparisons": {}}])
def test_a_file_without_cells(content: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "cells.json"
    file.write_text(json.dumps(content))
    with pytest.raises(ConfigError) as raised:
        read_lab_cells(file)
    check_clear(raised.value, f"cells {file}: ")


@pytest.mark.parametrize("name", ["config.json", "cells.json"])
@pytest.mark.parametrize("text", ["[" * 100_000, '{"hidden_size": ' + "1" * 5000 + "}", "{"])
def test_json_that_no_one_can_read(name: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(ConfigError, match="not a") as raised:
        read_lab_cells(file) if name == "cells.json" else parse_model(str(file), tokens=8)
    check_clear(raised.value)


def test_a_value_must_be_of_the_form_of_what_it_replaces() -> None:
    check_form("a", {"b": [[1, 2.5]]}, {"c": [[1.0, 1.0]]})
    for value, present in ((date(2026, 1, 1), "a"), ({"b": [1]}, {"b": [[1.0]]}), (None, 1.0)):
        with pytest.raises(ConfigError, match="not of the right form"):
            check_form("a", value, present)
    assert is_number(10**300)
    assert not is_number(10**400)


def test_infinity_hides_behind_no_other_number() -> None:
    unit_s = dict.fromkeys(OVERHEADS, 0.0)
    for value in (float("inf"), float("nan")):
        with pytest.raises(ConfigError):
            load_device("cpu", {"unit_s": {**unit_s, "resident": value}, "source": "given"})
