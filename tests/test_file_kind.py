"""What is no regular file is named, and not waited for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from clear_sentence import check_clear
from thinwire.errors import ConfigError, ThinwireError
from thinwire.file_kind import read_file_text
from thinwire.inspection.opening import open_source
from thinwire.planner.cluster_file import read_cluster_file
from thinwire.planner.models import parse_model
from thinwire.planner.validation.lab_cells import read_lab_cells
from thinwire.recipes import read_recipe

READERS: dict[str, Callable[[Path], object]] = {
    "recipe.toml": read_recipe,
    "cluster.toml": read_cluster_file,
    "cells.json": read_lab_cells,
    "config.json": lambda path: parse_model(str(path), tokens=8),
    "model.safetensors.index.json": open_source,
}


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_is_refused_and_not_waited_for(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(ThinwireError, match="pipe, not a file"):
        READERS[name](tmp_path / name)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("content", [b"a = " + b"[" * 100_000, b"[" * 100_000, b"\xff", b"a = "])
def test_what_no_parser_takes_is_refused(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ThinwireError, match="not a"):
        READERS[name](tmp_path / name)


@pytest.mark.parametrize("name", ["recipe.toml", "cluster.toml"])
def test_an_integer_too_long_to_read_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("a = " + "1" * 5000)
    with pytest.raises(ThinwireError, match="not a TOML file"):
        READERS[name](tmp_path / name)


SETTINGS = [name for name in READERS if not name.endswith(".index.json")]
KINDS = {
    "recipe.toml": "recipe file",
    "cluster.toml": "cluster file",
    "cells.json": "cells",
    "config.json": "model",
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"[" * 100_000,
        b"\xff",
        b"\xef\xbb\xbf{}",
        b"a = ",
        b"[]",
        b"[a]\n[a]",
        b"5",
        b'{"a": ' + b"1" * 5000 + b"}",
        b"a = " + b"1" * 5000,
        b"[" + b"a" * 100_000 + b"]",
        b"a = " + b"[" * 500 + b"]" * 500,
        b'{"model_type": ' + b"[" * 500 + b"]" * 500 + b"}",
        b'{"comparisons": ' + b"[" * 500 + b"]" * 500 + b"}",
    ],
    ids=lambda content: repr(content)[:20],
)
def test_what_cannot_be_read_is_named_and_gets_one_clear_sentence(
    name: str, content: bytes | None, tmp_path: Path
) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError) as raised:
        READERS[name](file)
    check_clear(raised.value, f"{KINDS[name]} {file}: ")


def test_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("ä", encoding="utf-8")
    assert read_file_text(tmp_path / "text") == "ä"
    with pytest.raises(OSError, match="directory"):
        read_file_text(tmp_path)
