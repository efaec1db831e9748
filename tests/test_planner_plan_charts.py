"""Pictures of a plan: long recipes stay within the picture, marks are round."""

from __future__ import annotations

import re

import pytest

from planner_settings import accelerators
from thinwire.planner.candidates import named_recipes
from thinwire.planner.plan_charts import (
    DRAWN_RECIPES,
    LABEL_WIDTH,
    LEGEND_WIDTH,
    left_out,
    plan_charts,
)
from thinwire.planner.plan_page import render_plan_page
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


def lines_and_styles(svg: str) -> set[str]:
    """Colour and dashes of every line that runs over all rates."""
    drawn = re.findall(r'<path d="((?:[ML] [\d.]+ [\d.]+ ?\n?)+)"[^>]*style="([^"]*)"', svg)
    return {style for points, style in drawn if points.count("L ") >= 20}


@pytest.mark.parametrize("number", [2, 13, DRAWN_RECIPES, DRAWN_RECIPES + 1, DRAWN_RECIPES + 3])
def test_every_recipe_is_drawn_or_named_as_left_out(number: int) -> None:
    setting = accelerators()
    named = named_recipes(setting)
    more = [parse_recipe(f"{recipe.name}:seed=1") for recipe in named]
    recipes = [*named, *more][:number]
    plan = make_plan(setting, recipes)
    chart = next(c for c in plan_charts(plan) if c.title == "Time of a step by bandwidth")
    names = [prediction.recipe.name for prediction in plan.predictions]
    texts = "".join(re.findall(r"<text[^>]*>([^<]*)</text>", chart.svg))
    assert all(name in texts for name in names[:DRAWN_RECIPES])
    assert len(lines_and_styles(chart.svg)) == min(number, DRAWN_RECIPES)
    page = render_plan_page(plan).render()
    assert ("leaves out" in page) == (number > DRAWN_RECIPES)
    told = left_out(plan)
    assert all(name in " ".join(told) for name in names[DRAWN_RECIPES:])


def test_seconds_are_marked_by_powers_of_ten(charts: dict[str, str]) -> None:
    marks = charts["Time of a step by bandwidth"].splitlines()
    assert {"10 s", "100 s"} & set(marks)
    assert not [mark for mark in marks if mark.endswith((" min", " h"))]
