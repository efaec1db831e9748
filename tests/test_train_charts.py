"""Charts are well-formed SVG that may stand beside others, say what they show, and repeat."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from made_runs import make_run
from thinwire.drawing import COLOURS, Chart
from thinwire.train.charts import draw_charts

SVG = "{http://www.w3.org/2000/svg}"


def draw(key: str = "a") -> tuple[Chart, ...]:
    runs = [
        make_run("zero3", step_s=1.0),
        make_run("zeropp:grads=int8/128", step_s=0.25, gathered_bytes=5e5),
    ]
    return draw_charts(runs, key=key)


def texts(chart: Chart) -> str:
    return " ".join(element.text or "" for element in ET.fromstring(chart.svg).iter(f"{SVG}text"))


def test_the_four_charts_are_well_formed_and_show_what_they_are_about() -> None:
    by_time, times, sent, by_step = draw()
    assert "seconds" in texts(by_time)
    assert "loss (nats per byte)" in texts(by_time)
    assert "2.500 after 5 steps" in texts(by_step)
    assert "250 ms" in texts(times)
    for word in ("all-gather", "reduce-scatter", "3 MB", "1.5 MB"):
        assert word in texts(sent)
    for chart in (by_time, by_step):
        paths = [path.get("style", "") for path in ET.fromstring(chart.svg).iter(f"{SVG}path")]
        assert any(COLOURS[0].lower() in style for style in paths)
        assert any(COLOURS[1].lower() in style for style in paths)


def test_the_words_for_those_who_do_not_see_hold_the_figures() -> None:
    by_time, times, sent, _ = draw()
    assert "zero3 goes from 5.500 to 2.500 in 8 s" in by_time.alt
    assert "zeropp:grads=int8/128 250 ms (from 225 ms to 275 ms)" in times.alt
    assert "zero3 sends 3 MB, all-gather 2 MB, reduce-scatter 1 MB" in sent.alt


def test_no_identifier_is_used_twice_and_every_reference_is_served() -> None:
    together = "".join(chart.svg for key in ("a", "b") for chart in draw(key))
    identifiers = re.findall(r'\bid="([^"]+)"', together)
    assert len(identifiers) == len(set(identifiers))
    references = re.findall(r'(?:url\(#|href="#)([^")]+)', together)
    assert references
    assert set(references) <= set(identifiers)


def test_the_same_runs_give_the_same_charts() -> None:
    assert draw() == draw()


def test_nothing_is_loaded_and_the_text_takes_the_colour_of_the_page() -> None:
    for chart in draw():
        outside = [
            match for match in re.findall(r'(?:href|src)="([^"]*)"', chart.svg) if match[0] != "#"
        ]
        assert outside == []
        assert "currentColor" in chart.svg
        assert "#000000" not in chart.svg


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "$x^2$", "a & b", "_hidden", "ä"])
def test_any_name_is_shown_as_it_is(name: str) -> None:
    charts = draw_charts([make_run(name, step_s=1.0)], key="a")
    for chart in charts:
        assert name in texts(chart)


def test_losses_that_are_not_finite_leave_a_gap_and_are_told() -> None:
    runs = [
        make_run("broken", step_s=1.0, losses=(None,) * 5),
        make_run("gap", step_s=1.0, losses=(3.0, None, 2.0, 1.5, 1.0)),
    ]
    by_time, *_ = draw_charts(runs, key="a")
    assert "broken never has a finite loss" in by_time.alt
    assert "gap goes from 3.000 to 1.000" in by_time.alt


def test_a_run_that_sends_nothing_can_be_drawn() -> None:
    charts = draw_charts([make_run("alone", step_s=1.0, collectives=())], key="a")
    assert "0 B" in texts(charts[2])


def test_a_planned_step_is_marked_and_said() -> None:
    runs = [make_run("zero3", step_s=1.0, predicted_step_s=3.0), make_run("thin", step_s=0.25)]
    _, times, _, _ = draw_charts(runs, key="a")
    assert "diamond: planned" in texts(times)
    assert "zero3 1 s (from 900 ms to 1.1 s, planned 3 s)" in times.alt
    assert times.alt.count("planned") == 1
