"""What the pages show is run: Python blocks on two ranks, commands through the parser."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import typer

from small_models import SmallModel, draw_tokens, token_loss
from thinwire.cli.app import app
from world import run_world

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md")])


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.M | re.S)


def commands(language: str = "bash") -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for block in blocks(page, language):
            for line in block.replace("\\\n", " ").splitlines():
                command = line.split("#")[0].strip()
                if command:
                    found.append((page.name, command))
    return found


PYTHON_PAGES = [page for page in PAGES if blocks(page, "python")]


class LossModel(SmallModel):
    """Returns its loss, as the models of many libraries do."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return token_loss(super().forward, tokens)  # type: ignore[arg-type]


def page_body(rank: int, size: int, path: str) -> None:
    names: dict[str, Any] = {
        "model": LossModel(),
        "build_model": LossModel,
        "batches": [draw_tokens(step, rank) for step in range(2)],
    }
    # the pages open the process group themselves; here the world has one already
    with mock.patch("torch.distributed.init_process_group"):
        for block in blocks(Path(path), "python"):
            exec(compile(block, path, "exec"), names)


@pytest.mark.parametrize("page", PYTHON_PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page: Path) -> None:
    run_world(page_body, 2, str(page))


@pytest.mark.parametrize(("page", "command"), commands(), ids=lambda text: text[:60])
def test_commands_exist(page: str, command: str) -> None:
    """Every command in a page is one that the project has, with options that it takes."""
    program, *arguments = shlex.split(command)
    if program == "make":
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M)
        assert set(arguments) <= set(targets)
        return
    if program == "python":
        assert (ROOT / arguments[0]).is_file()
        return
    assert program == "thinwire"
    group = typer.main.get_command(app)
    with group.make_context("thinwire", list(arguments), resilient_parsing=False) as context:
        name, verb, rest = group.resolve_command(context, list(arguments))  # type: ignore[attr-defined]
        assert verb is not None
        verb.make_context(name, rest, parent=context)


def test_the_readme_command_runs() -> None:
    """The command that a reader is told to try first, to the end."""
    (command,) = [c for page, c in commands() if page == "README.md" and "compare" in c]
    program, *arguments = shlex.split(command)
    done = subprocess.run(
        [sys.executable, "-m", program, *arguments], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert "zeropp" in done.stdout


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_no_page_is_missing_from_the_site() -> None:
    nav = (ROOT / "mkdocs.yml").read_text()
    for page in ROOT.glob("docs/*.md"):
        assert f": {page.name}" in nav
