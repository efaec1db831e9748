"""Wrong values at every place of every file that the planner reads: refused, never a traceback."""

from __future__ import annotations

import copy
import json
import tomllib
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from thinwire.errors import ConfigError, ThinwireError
from thinwire.planner.hardware import OVERHEADS
from thinwire.planner.hardware_file import load_device
from thinwire.planner.models import config_workload, parse_model
from thinwire.planner.models.config import ModelConfig
from thinwire.planner.request import ClusterRequest
from thinwire.planner.validation.lab_cells import read_lab_cells
from thinwire.planner.value_form import check_form, is_number

# of each kind that a file can hold, an empty and a filled one
WRONG: tuple[Any, ...] = (5, 0.5, "a", "", True, [], ["a"], [[1, "a"]], {}, {"a": 1}, {"a": {}})

CLUSTER = """
[cluster]
hosts = 2
ranks_per_host = 1
shaped = true
[device]
preset = "cpu"
flop_per_s = { fp32 = 1e11, bf16 = 2e11 }
matmul_efficiency = [[1e6, 0.5], [1e8, 0.9]]
codec = { encode_copies = { int = 0.5 }, sum_copies = { cast = 0.4, fp8 = 0.3 } }
unit_s = { replicated = 0.0, hooked = 0.0, stock = 0.002, compressed = 0.003, resident = 0.004 }
parameter_s = { replicated = 0.0, hooked = 0.0, stock = 0.0, compressed = 1e-9, resident = 0.0 }
step_s = { replicated = 0.0, hooked = 0.0, stock = 0.0, compressed = 0.0, resident = 0.001 }
source = "calibrated: two cores"
[host]
memory_bytes = 24e9
disk_bytes_per_s = 1e9
source = "given"
[backend]
preset = "gloo"
call_s = 0.0
has_tree = false
reduce_scatter_passes = 2
shares = { all_gather = [[1e4, 1.0], [1e6, 0.7]], rounds = [[1e4, 0.9]] }
calls_s = { all_gather = 1e-3, rounds = 1e-4 }
source = "calibrated"
[link]
bit_per_s = 2e8
latency_s = 1e-4
loss = 0.001
protocol = "tcp"
efficiency = [[1e4, 0.9]]
source = "calibrated"
"""

CONFIG = {
    "model_type": "mixtral",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "vocab_size": 100,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 8,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}

CELLS = {
    "hosts": 2,
    "ranks_per_host": 1,
    "model": "gpt:2x64x2",
    "seq": 32,
    "micro_batch": 1,
    "hardware": "lab.toml",
    "link": {"measured_bit_per_s": 2e8},
    "runs": [{"recipe": "zero3", "step_s": {"median": 0.1}}],
}


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
        yield from (float("nan"), float("inf"), -float("inf"), -1, 10**400)


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value) if isinstance(value, (bool, str)) else str(value)


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


def test_a_file_of_an_older_version_is_to_be_made_anew(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(CLUSTER.replace("hooked = 0.0, ", ""))
    with pytest.raises(ConfigError, match="without hooked; calibrate again"):
        ClusterRequest(file=file).cluster()


@pytest.mark.parametrize("path", cluster_places(), ids=str)
def test_every_place_of_a_cluster_file(path: tuple[Any, ...], tmp_path: Path) -> None:
    tables = tomllib.loads(CLUSTER)
    file = tmp_path / "cluster.toml"
    for value in wrong_values(tables, path):
        text = changed(tables, path, value)
        file.write_text("\n".join(f"{key} = {toml(item)}" for key, item in text.items()))
        with pytest.raises(ConfigError):
            ClusterRequest(file=file).cluster()


@pytest.mark.parametrize("path", list(places(CONFIG)), ids=str)
def test_every_place_of_a_models_config(path: tuple[Any, ...]) -> None:
    for value in wrong_values(CONFIG, path):
        with pytest.raises(ConfigError):
            config_workload(ModelConfig("made", changed(CONFIG, path, value)), tokens=16)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("num_experts_per_tok", 5, "more than the 4 of num_local_experts"),
        ("hidden_size", 10**30, "hidden_size is above 1e"),
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
        with pytest.raises(ThinwireError):
            read_lab_cells(file)


@pytest.mark.parametrize("name", ["config.json", "cells.json"])
@pytest.mark.parametrize("text", ["[" * 100_000, '{"hidden_size": ' + "1" * 5000 + "}", "{"])
def test_json_that_no_one_can_read(name: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(ThinwireError, match="not a"):
        read_lab_cells(file) if name == "cells.json" else parse_model(str(file), tokens=8)


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
