"""``thinwire inspect`` as people and programs meet it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from inspect import signature
from pathlib import Path

import pytest
import torch

from made_checkpoints import make_tensors, write_index, write_safetensors
from thinwire.cli import inspect as verb
from thinwire.cli import main
from thinwire.inspection import InspectRequest
from thinwire.inspection.request import DEFAULT_FORMATS, parse_exact


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    tensors = make_tensors(8)
    tensors["blocks.3.mlp.weight"][:, 0] *= 30
    return write_safetensors(tmp_path / "model.safetensors", tensors)


def test_people_read_tables_and_a_verdict(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(checkpoint), "--top", "2"]) == 0
    told = capsys.readouterr()
    assert f"{checkpoint}: 25 layers" in told.out
    for fmt in ("int8/128", "e4m3/128", "int4/128+hadamard", "log4/128", "int2/64"):
        assert fmt in told.out
    assert "int4/128 hurts 1 of 9 layers: blocks.3.mlp.weight" in told.out
    assert "int4/128+hadamard hurts none of 9 layers" in told.out
    # progress on standard error: not a terminal here, so a line a file
    assert told.err.count("\n") == 1


def test_programs_read_one_document(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--formats", "int4/128,int2/64", "--rank-by", "int2/64", "--layers", "*mlp*"]
    assert main(["inspect", str(checkpoint), *arguments, "--top", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["formats"] == ["int4/128", "int2/64"]
    assert document["ranked_by"] == "int2/64"
    (file,) = document["files"]
    assert file["file"] == str(checkpoint)
    assert len(file["layers"]) == 16
    assert [item["format"] for item in file["histograms"]] == ["int2/64"]
    assert file["formats"][0]["hurt"] == ["blocks.3.mlp.weight"]


def test_several_files_are_held_against_each_other(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exact = write_safetensors(tmp_path / "norms.safetensors", {"norm": torch.ones(4)})
    assert main(["inspect", str(checkpoint), str(exact), "--formats", "int4/128"]) == 0
    _, compared = capsys.readouterr().out.split("Files side by side")
    lines = [line.split()[1:] for line in compared.splitlines() if ".safetensors" in line]
    assert lines[0][0] == "9"
    assert lines[0][2:] == ["1", "hurt"]
    assert lines[1] == ["0", "-"]


def test_a_page_is_written_and_named(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "new" / "page.html"
    arguments = ["--formats", "int4/128", "--html", str(page), "--top", "1"]
    assert main(["inspect", str(checkpoint), str(checkpoint), *arguments]) == 0
    assert f"page: {page}" in capsys.readouterr().out
    assert page.read_text().count("<svg") == 6  # two files, three charts each


def test_a_page_never_takes_the_place_of_what_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    index = write_index(folder, make_tensors())
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert len(before) == 3
    for page in before:
        for given in (folder, index):
            assert main(["inspect", str(given), "--html", str(page)]) == 2
            assert f"{page}: is read here" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_one_layer_is_not_called_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_safetensors(tmp_path / "a.safetensors", {"w": torch.randn(64, 64)})
    assert main(["inspect", str(path), "--formats", "int4/128"]) == 0
    told = capsys.readouterr().out
    assert f"{path}: 1 layer, " in told
    assert "hurts none of 1 layer;" in told
    assert "1 layers" not in told


def test_help_tells_the_defaults_that_are_in_effect(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--help"]) == 0
    told = capsys.readouterr().out
    assert all(fmt in told for fmt in DEFAULT_FORMATS)
    defaults = {name: item.default for name, item in signature(verb.inspect).parameters.items()}
    assert parse_exact(defaults["exact"]) == InspectRequest().exact
    assert defaults["top"] == InspectRequest().top
    assert InspectRequest(patterns=(defaults["layers"],)) == InspectRequest()


def test_names_do_not_steer_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.pt"
    torch.save({"\x1b[31mred [bold]w": torch.randn(64, 64)}, path)
    assert main(["inspect", str(path), "--formats", "int4/128"]) == 0
    told = capsys.readouterr().out
    assert "\x1b" not in told
    assert "\\x1b[31mred [bold]w" in told


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "FILE"),
        (["missing.safetensors"], 1, "No such file"),
        (["{file}", "--formats", "int9"], 2, "unknown format"),
        (["{file}", "--formats", ""], 2, "a format is missing"),
        (["{file}", "--formats", ","], 2, "a format is missing"),
        (["{file}", "--formats", "int4,"], 2, "a format is missing"),
        (["{file}", "--formats", "int4,int4/128"], 2, "none twice"),
        (["{file}", "--rank-by", "bf16"], 2, "cannot be ranked by bf16"),
        (["{file}", "--layers", "nothing*"], 2, "no layer is called"),
        (["{file}", "--layers", "*mlp*,nothing*"], 2, "no layer is called nothing*"),
        (["{file}", "--exact", "*norm*,nothing*"], 2, "no layer is called nothing*"),
        (["{file}", "--layers", ""], 2, "--layers ''"),
        (["{file}", "--exact", "a,,b"], 2, "--exact 'a,,b'"),
        (["{file}", "--formats", "lowrank=4/3x3"], 2, "layer blocks.0.mlp.weight: lowrank=4/3x3"),
        (["{file}", "--html", "{file}"], 2, "would be overwritten"),
        (["{file}", "--html", "/dev/null"], 2, "is a device, not a file"),
        (["{folder}/pipe"], 1, "copy it into a file first"),
        (["{file}", "--top", "-1"], 2, "--top"),
        (["{file}", "--exact", "none", "--formats", "lowrank=2"], 2, "needs a matrix"),
        (["{file}", "--html", "/"], 2, "cannot be written"),
        (["{file}", "{folder}/empty"], 1, "is empty"),
        (["{folder}/code.pt"], 1, "code from a file is not run"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    arguments: list[str],
    code: int,
    said: str,
    checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    torch.save(torch.nn.Linear(2, 2), tmp_path / "code.pt")
    given = [text.format(file=checkpoint, folder=tmp_path) for text in arguments]
    assert main(["inspect", *given]) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("thinwire: error: ")
    assert told.err.count("\n") == 1
    assert said in told.err


def test_the_program_runs_as_a_program(checkpoint: Path) -> None:
    command = [sys.executable, "-m", "thinwire", "inspect", str(checkpoint), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert len(json.loads(done.stdout)["files"]) == 1
