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

CONFIG: dict[str, Any] = {
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

CONFIGS: dict[str, dict[str, Any]] = {
    "mixtral": CONFIG,
    "gpt2": {
        "model_type": "gpt2",
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 4,
        "n_inner": 96,
        "n_positions": 32,
        "vocab_size": 100,
        "attn_pdrop": 0.1,
    },
    "gpt_neox": {
        "model_type": "gpt_neox",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 100,
        "attention_bias": True,
    },
    "bert": {
        "model_type": "bert",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 100,
        "type_vocab_size": 2,
        "max_position_embeddings": 64,
        "hidden_dropout_prob": 0.1,
    },
    "t5": {
        "model_type": "t5",
        "d_model": 64,
        "d_kv": 8,
        "d_ff": 96,
        "num_layers": 3,
        "num_decoder_layers": 2,
        "num_heads": 4,
        "vocab_size": 100,
        "relative_attention_num_buckets": 16,
        "feed_forward_proj": "relu",
    },
    "vit": {
        "model_type": "vit",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 32,
        "patch_size": 8,
        "num_channels": 3,
        "num_labels": 10,
        "qkv_bias": True,
    },
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
        yield from (float("nan"), float("inf"), -float("inf"), -1, 1e300, 10**400)


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value) if isinstance(value, (bool, str)) else str(value)


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
