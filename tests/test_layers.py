"""The arrows of the house: what import-linter holds, and what it cannot express."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

import thinwire

ROOT = Path(thinwire.__file__).parent


def imported(path: Path) -> Iterator[str]:
    """Every module that a file imports, at its top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, f"{path} uses a relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_layer_contracts_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT.parent.parent)
    assert lint_imports() == 0


@pytest.mark.parametrize(
    ("floor", "forbidden"),
    [
        ("wire", "torch.distributed"),  # the wire knows no ranks
        ("inspection", "torch.distributed"),
        ("lab", "torch"),
        ("planner", "torch.distributed"),
        ("formats.py", "torch"),
        ("recipe.py", "torch"),
        ("recipes.py", "torch"),
        ("errors.py", "torch"),
        ("quantities.py", "torch"),
    ],
)
def test_a_floor_does_not_reach_further(floor: str, forbidden: str) -> None:
    path = ROOT / floor
    files = [path] if path.is_file() else sorted(path.rglob("*.py"))
    assert files
    for file in files:
        reached = [
            name for name in imported(file) if name == forbidden or name.startswith(f"{forbidden}.")
        ]
        assert not reached, f"{file.name} imports {reached[0]}"


def test_the_search_for_imports_can_fail() -> None:
    assert "torch.distributed" in set(imported(ROOT / "comm" / "exchange.py"))


def test_no_file_has_a_name_that_says_nothing() -> None:
    names = {path.stem for path in ROOT.rglob("*.py")}
    assert not names & {"utils", "common", "helpers", "misc", "util"}
