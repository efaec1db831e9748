"""The page that any part may write: escaped, self-contained, whole or not at all."""

from __future__ import annotations

import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from planner_settings import accelerators
from thinwire.errors import InputError
from thinwire.page import Page
from thinwire.planner.plan_page import render_plan_page
from thinwire.planner.ranking import make_plan
from thinwire.recipes import parse_recipes

EVIL = "<script>alert(\"x\")</script> & 'quoted'"
CHROMIUM = shutil.which("chromium")
FLAGS: tuple[str, ...] = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic")
FLAGS += ("--no-first-run",)
FLAGS += ("--disable-background-networking", "--disable-component-update", "--disable-sync")
FLAGS += ("--enable-logging=stderr",)


@dataclass(frozen=True)
class Drawing:
    title: str = EVIL
    alt: str = EVIL
    svg: str = "<svg></svg>"


def test_all_that_is_said_is_escaped() -> None:
    page = Page(EVIL)
    page.conclusion(EVIL)
    page.paragraph(EVIL)
    page.section(EVIL)
    page.table((EVIL, EVIL), [(EVIL, EVIL)])
    page.figures([Drawing()])
    rendered = page.render()
    assert "<script" not in rendered
    # title, heading, conclusion, paragraph, section, two headings, two cells, caption, alt twice
    assert rendered.count("&lt;script&gt;") == 12


def test_the_browser_may_load_nothing() -> None:
    assert "default-src 'none'" in Page("t").render()


def test_a_page_is_replaced_and_readable(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")
    Page("new").write(path)
    assert "new" in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert list(tmp_path.iterdir()) == [path]


def test_a_page_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing" / "page.html"):
        with pytest.raises(InputError, match="cannot be written"):
            Page("t").write(path)
    assert list(tmp_path.iterdir()) == []


def test_the_same_plan_gives_the_same_page() -> None:
    setting = accelerators()
    plan = make_plan(setting, parse_recipes("zero3,zeropp"))
    assert render_plan_page(plan).render() == render_plan_page(plan).render()


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium")
def test_a_browser_draws_a_plan_without_complaint(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    setting = accelerators()
    render_plan_page(make_plan(setting, parse_recipes("zero2,zero3,zeropp"))).write(page)
    assert CHROMIUM is not None
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    done = subprocess.run(
        [*command, page.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    assert [line for line in done.stderr.splitlines() if ":CONSOLE:" in line] == []
    assert done.stdout.count("<svg") == 4
    assert "break-even" in done.stdout
