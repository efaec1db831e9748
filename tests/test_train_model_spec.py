"""Every form of ``--model``, and what each refusal says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from thinwire.errors import ConfigError
from thinwire.planner.models import parse_model as parse_workload
from thinwire.planner.models.config import ModelConfig
from thinwire.planner.models.gpt import GPTShape
from thinwire.train.model_spec import PRESETS, parse_model


def test_a_shape_parses_and_prints_back() -> None:
    spec = parse_model("gpt:6x512x8", seq_len=128)
    assert spec == GPTShape(layers=6, hidden=512, heads=8)
    assert str(spec) == "gpt:6x512x8"


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_the_same_model_to_the_planner(name: str) -> None:
    spec = parse_model(name, seq_len=64)
    assert isinstance(spec, GPTShape)
    assert spec.num_parameters(64) == parse_workload(name, tokens=64).num_parameters


@pytest.mark.parametrize("asked", ["50k", "1M", "25M", "1.3B"])
def test_a_number_gives_the_nearest_gpt(asked: str) -> None:
    spec = parse_model(asked, seq_len=128)
    assert isinstance(spec, GPTShape)
    wanted = {"50k": 5e4, "1M": 1e6, "25M": 2.5e7, "1.3B": 1.3e9}[asked]
    # one layer more or less is the step between neighbours: at most a third with three layers or
    # more, and a small model has other widths to choose from
    assert spec.num_parameters(128) == pytest.approx(wanted, rel=0.35)


def test_a_config_is_found_in_its_folder_and_by_its_own_path(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_embd": 32}))
    for path in (tmp_path, tmp_path / "config.json"):
        spec = parse_model(str(path), seq_len=128)
        assert isinstance(spec, ModelConfig)
        assert spec.family == "gpt2"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpt:6x512", "gpt:LAYERSxHIDDENxHEADS"),
        ("gpt:0x512x8", "layers must be at least 1"),
        ("gpt:6x512x7", "7 heads do not divide"),
        ("gpt:-6x512x8", "gpt:LAYERSxHIDDENxHEADS"),
        ("nonsense", "a preset (tiny, small, medium, large)"),
        ("", "a preset"),
        ("0", "more than zero"),
        ("-5", "a number of parameters"),
        ("missing/config.json", "cannot be read"),
        ("1e18", "gpt:LAYERSxHIDDENxHEADS"),
        ("100", "gpt:LAYERSxHIDDENxHEADS"),
    ],
)
def test_a_wrong_model_is_answered_with_what_to_write(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_model(text, seq_len=128)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [("{", "not a JSON file"), ("[]", "no JSON object"), ("{}", "names no model_type")],
)
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=said):
        parse_model(str(tmp_path), seq_len=128)


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        parse_model(str(tmp_path), seq_len=128)


def test_parsing_loads_no_torch() -> None:
    code = (
        "import sys\nfrom thinwire.train.model_spec import parse_model\n"
        "parse_model('25M', seq_len=128)\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
