"""Checkpoints in several files: what the index may say, and what it may not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from made_checkpoints import make_tensors, write_index
from thinwire.errors import InputError
from thinwire.inspection.opening import open_source


def test_the_order_is_that_of_the_model_not_of_the_shards(tmp_path: Path) -> None:
    source = open_source(write_index(tmp_path, make_tensors(12), num_shards=3))
    blocks = [int(t.name.split(".")[1]) for t in source.tensors if t.name.startswith("blocks")]
    assert blocks == sorted(blocks)
    assert len(source.tensors) == len(make_tensors(12))


def test_shards_of_torch_are_read_too(tmp_path: Path) -> None:
    tensors = make_tensors()
    torch.save(tensors, tmp_path / "pytorch_model-1.bin")
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(tensors, "pytorch_model-1.bin")}))
    source = open_source(tmp_path)
    for name, tensor in tensors.items():
        assert torch.equal(source.read(name), tensor)


def test_what_the_index_does_not_name_is_not_part_of_it(tmp_path: Path) -> None:
    index = write_index(tmp_path, make_tensors())
    content = json.loads(index.read_text())
    del content["weight_map"]["embed.weight"]
    index.write_text(json.dumps(content))
    assert "embed.weight" not in {tensor.name for tensor in open_source(index).tensors}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not a JSON file"),
        ("[" * 100_000, "not a JSON file"),
        ("\udcff", "not a JSON file"),
        ("[]", "no weight_map"),
        ('{"weight_map": {}}', "no weight_map"),
        ('{"weight_map": {"w": 3}}', "not a file beside it"),
        ('{"weight_map": {"w": "../outside"}}', "not a file beside it"),
        ('{"weight_map": {"w": "/etc/hostname"}}', "not a file beside it"),
        ('{"weight_map": {"w": ".."}}', "is a folder, not a file"),
        ('{"weight_map": {"w": "missing"}}', "names the shard missing, which is not there"),
        ('{"weight_map": {"w": "' + "n" * 300 + '"}}', "which is not there"),
    ],
)
def test_a_wrong_index_is_refused(content: str, said: str, tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(content, errors="surrogateescape")
    with pytest.raises(InputError, match=said) as raised:
        open_source(index)
    assert index.name in str(raised.value)


@pytest.mark.parametrize("fault", ["missing", "empty", "a pipe", "broken"])
def test_a_shard_s_fault_names_the_shard_and_its_index(tmp_path: Path, fault: str) -> None:
    index = write_index(tmp_path, make_tensors())
    shard = tmp_path / "model-00002-of-00002.safetensors"
    content = shard.read_bytes()
    shard.unlink()
    if fault == "a pipe":
        os.mkfifo(shard)
    elif fault != "missing":
        shard.write_bytes(content[:-1] if fault == "broken" else b"")
    for given in (index, tmp_path):
        with pytest.raises(InputError) as raised:
            open_source(given)
        assert shard.name in str(raised.value)
        assert index.name in str(raised.value)


def test_a_checkpoint_knows_all_files_that_it_is_read_from(tmp_path: Path) -> None:
    index = write_index(tmp_path, make_tensors(), num_shards=3)
    assert set(open_source(tmp_path).files) == set(tmp_path.iterdir())
    assert index in open_source(index).files


def test_a_tensor_that_is_not_where_it_should_be(tmp_path: Path) -> None:
    index = write_index(tmp_path, make_tensors())
    content = json.loads(index.read_text())
    files = sorted(set(content["weight_map"].values()))
    content["weight_map"]["embed.weight"] = files[1]
    index.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"does not hold embed\.weight"):
        open_source(index)
