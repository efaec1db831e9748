"""Pictures of a plan: long recipes stay within the picture, marks are round."""

from __future__ import annotations

import re

import pytest

from planner_settings import accelerators
from thinwire.planner.plan_charts import LABEL_WIDTH, LEGEND_WIDTH, plan_charts
from thinwire.planner.ranking import make_plan
from thinwire.recipes import parse_recipe

LONG = "zero3:weights=int8/256:grads=int8/128:activations=recompute:optimizer_states=int8/256"


@pytest.fixture(scope="module")
def charts() -> dict[str, str]:
    """The text of every chart by title, a line of the picture a line."""
    setting = accelerators()
    recipes = [parse_recipe(text) for text in (LONG, f"{LONG}:offload=states", "zero3")]
    drawn = plan_charts(make_plan(setting, recipes))
    texts = (re.findall(r"<text[^>]*>([^<]*)</text>", chart.svg) for chart in drawn)
    return {chart.title: "\n".join(lines) for chart, lines in zip(drawn, texts, strict=True)}


@pytest.mark.parametrize(
    ("title", "width"),
    [
        ("Memory of the worst rank by term", LABEL_WIDTH),
        ("Time of a step by part", LABEL_WIDTH),
        ("Time of a step by bandwidth", LEGEND_WIDTH),
    ],
)
def test_a_long_recipe_is_broken_between_its_options(
    title: str, width: int, charts: dict[str, str]
) -> None:
    text = charts[title]
    assert max(map(len, text.splitlines())) <= width
    assert "zero3" in text.splitlines()
    assert LONG in text.replace("\n", "")


def test_seconds_are_marked_by_powers_of_ten(charts: dict[str, str]) -> None:
    marks = charts["Time of a step by bandwidth"].splitlines()
    assert {"10 s", "100 s"} & set(marks)
    assert not [mark for mark in marks if mark.endswith((" min", " h"))]
