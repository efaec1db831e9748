"""What people see of a comparison, on a terminal and in a file."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from made_runs import make_comparison, make_run, make_setting
from thinwire.cli import comparison_view, console
from thinwire.cli.comparison_view import ComparisonProgress, print_comparison
from thinwire.train.comparison import Link
from thinwire.train.progress import StepEvent

LINK = Link(requested_bit_per_s=1e8, measured_bit_per_s=0.99e8)
MARKUP = "[red]a[/red] [bold]"


def test_the_table_has_a_column_per_recipe_and_fits_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison_view, "result_console", lambda: console.result_console(80))
    runs = [make_run(name, step_s=1.0) for name in ("zero3", "zeropp", "qsdp", "hpz")]
    print_comparison(make_comparison(make_setting(runs)), page=None)
    lines = capsys.readouterr().out.splitlines()
    (header,) = [line for line in lines if line.split()[:1] == ["recipe"]]
    assert header.split() == ["recipe", "zero3", "zeropp", "qsdp", "hpz"]
    table = lines[lines.index(header) : lines.index(header) + 12]
    assert max(len(line) for line in table) <= 80
    assert not any("…" in line for line in table)


def test_every_setting_gets_a_table_and_the_last_words_are_the_conclusions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs = [make_run("zero3", step_s=1.0), make_run("zeropp", step_s=0.2)]
    comparison = make_comparison(make_setting(runs), make_setting(runs, link_bit_per_s=None))
    print_comparison(comparison, page=None)
    out = capsys.readouterr().out
    assert "Link of 100 Mbit/s, measured 99 Mbit/s" in out
    assert "Link not shaped" in out
    over, without = out.splitlines()[-2:]
    assert over.startswith("Over a link of 100 Mbit/s")
    assert without.startswith("Without a shaped link")


def test_names_are_not_taken_for_markup(capsys: pytest.CaptureFixture[str]) -> None:
    with ComparisonProgress() as progress:
        progress.begin_setting(None, MARKUP)
        progress.begin_run(MARKUP, 1)
        progress.end_run(make_run(MARKUP, step_s=1.0))
    print_comparison(make_comparison(make_setting([make_run(MARKUP, step_s=1.0)])), page=None)
    told = capsys.readouterr()
    assert told.err.count(MARKUP) == 2
    assert MARKUP in told.out


def test_without_a_terminal_progress_is_a_line_per_recipe(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with ComparisonProgress() as progress:
        progress.begin_setting(LINK, None)
        progress.begin_run("zero3", 5)
        progress.step(StepEvent(step=0, loss=None, step_s=0.5))
        progress.end_run(make_run("zero3", step_s=1.0))
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [
        "link: requested 100 Mbit/s, measured 99 Mbit/s",
        "zero3: 5 steps, 1 s a step",
    ]


def test_on_a_terminal_progress_is_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(
        console,
        "Console",
        lambda **options: Console(file=screen, force_terminal=True, width=100),
    )
    with ComparisonProgress() as progress:
        progress.begin_run("zero3", 4)
        progress.step(StepEvent(step=1, loss=2.5, step_s=0.5))
    shown = screen.getvalue()
    assert "zero3" in shown
    assert "2/4" in shown
    assert "loss 2.500, 500 ms" in shown
