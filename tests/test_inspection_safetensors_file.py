"""Safetensors files: names in the order of the model, dtypes in torch's words, read when asked."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from made_checkpoints import write_safetensors
from thinwire.errors import InputError
from thinwire.inspection.safetensors_file import SafetensorsFile

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "uint8": torch.uint8,
    "bool": torch.bool,
    "float8_e4m3fn": torch.float8_e4m3fn,
}


def test_dtypes_have_the_names_that_torch_gives_them(tmp_path: Path) -> None:
    tensors = {name: torch.ones(2, 3).to(dtype) for name, dtype in DTYPES.items()}
    file = SafetensorsFile(write_safetensors(tmp_path / "a", tensors), "a")
    for tensor in file.tensors:
        assert tensor.dtype == tensor.name
        assert tensor.shape == (2, 3)
        assert (tensor.obstacle is None) == (tensor.name in list(DTYPES)[:4])
        if tensor.obstacle is None:
            assert tensor.stored_bytes == 6 * DTYPES[tensor.name].itemsize


def test_layers_are_in_the_order_in_which_people_count(tmp_path: Path) -> None:
    tensors = {f"layers.{index}.w": torch.ones(1) for index in (10, 9, 100, 2, 0)}
    file = SafetensorsFile(write_safetensors(tmp_path / "a", tensors), "a")
    assert [tensor.name.split(".")[1] for tensor in file.tensors] == ["0", "2", "9", "10", "100"]


def test_a_single_number_and_an_empty_tensor(tmp_path: Path) -> None:
    tensors = {"number": torch.tensor(2.5), "empty": torch.ones(0, 4)}
    file = SafetensorsFile(write_safetensors(tmp_path / "a", tensors), "a")
    assert {tensor.name: tensor.obstacle for tensor in file.tensors} == {
        "empty": "holds no elements",
        "number": None,
    }
    assert file.read("number").item() == 2.5


def test_a_file_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "a", {"w": torch.ones(4)})
    file = SafetensorsFile(path, "a")
    write_safetensors(path, {"other": torch.ones(4)})
    with pytest.raises(InputError, match="do not write to the file"):
        file.read("w")
    path.unlink()
    with pytest.raises(InputError, match="cannot be read"):
        file.read("w")
