"""The tables of a plan: every recipe can be told from every other, however narrow they are."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import pytest
from rich.console import Console

from planner_settings import accelerators
from thinwire.cli import plan_view
from thinwire.planner.candidates import grid
from thinwire.planner.ranking import Plan, make_plan


@pytest.fixture(scope="module")
def plan() -> Plan:
    setting = accelerators("gpt:71x3904x61")
    return make_plan(setting, tuple(itertools.islice(grid(setting), 600)), limit=10)


def first_column(lines: list[str]) -> str:
    """The first cells of all rows, put together where they take several lines."""
    width = max(len(line[2:].partition("  ")[0]) for line in lines)
    return "".join(line[2 : 2 + width].strip() for line in lines)


@pytest.mark.parametrize("width", [80, 100, 140, 300])
def test_no_two_recipes_look_alike(width: int, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = io.StringIO()
    console = Console(file=printed, width=width, highlight=False)
    monkeypatch.setattr(plan_view, "result_console", lambda _: console)
    plan_view.print_plan(plan, page=Path("page.html"))
    names = [prediction.recipe.name for prediction in plan.predictions]
    assert max(map(len, names)) > 60
    lines = printed.getvalue().splitlines()
    starts = [index + 1 for index, line in enumerate(lines) if set(line.strip()) == {"\u2500"}]
    assert len(starts) == 2
    for start in starts:
        length = next(n for n, line in enumerate(lines[start:]) if not line.strip())
        assert first_column(lines[start : start + length]) == "".join(names)
