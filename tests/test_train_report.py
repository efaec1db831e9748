"""The page: complete, safe, self-contained, and drawn by a real browser without a complaint."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from numpy.typing import NDArray

from made_runs import make_comparison, make_run, make_setting
from thinwire.drawing import COLOURS
from thinwire.train.charts import SHADES
from thinwire.train.comparison import Comparison, Run
from thinwire.train.machine import describe_machine
from thinwire.train.report import render_report, write_report

MACHINE = {"torch": "2.13", "processor": "a processor, 2 cores usable"}
VOID = {"meta", "br", "hr", "img", "link", "input"}


def make_page_comparison(**changes: str) -> Comparison:
    runs = [
        make_run("zero3", step_s=1.0),
        make_run("zeropp:grads=int8/128", step_s=0.25, gathered_bytes=5e5, validation_loss=2.51),
    ]
    slow = [
        make_run("zero3", step_s=0.2),
        make_run("zeropp:grads=int8/128", step_s=0.3, gathered_bytes=5e5),
    ]
    return make_comparison(
        make_setting(runs),
        make_setting(slow, link_bit_per_s=None, notice="no lab here, for a reason"),
        **changes,
    )


class Outline(HTMLParser):
    """Checks that tags are balanced, and collects text, tags and what would be loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.labels: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "data", "action") and value:
                self.loads.append(value)
            if name == "aria-label" and value:
                self.labels.append(value)
            assert not name.startswith("on"), "an event handler is a script"

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def outline(page: str) -> Outline:
    parsed = Outline()
    parsed.feed(page)
    parsed.close()
    assert parsed.open == []
    return parsed


def test_the_page_holds_tables_charts_verdicts_and_how_it_was_measured() -> None:
    parsed = outline(render_report(make_page_comparison(), MACHINE).render())
    assert parsed.tags.count("svg") == 8
    assert parsed.tags.count("table") == 2
    for said in (
        "Over a link of 100 Mbit/s, against zero3: pays: zeropp:grads=int8/128 (4x).",
        "Without a shaped link, against zero3: does not pay: zeropp:grads=int8/128 (0.67x).",
        "Link of 100 Mbit/s, measured 99 Mbit/s",
        "no lab here, for a reason",
        "250 ms",
        "2.5100",
        "a processor, 2 cores usable",
        "seed 0",
    ):
        assert said in parsed.text


def test_the_page_says_which_steps_its_times_are_of() -> None:
    def said_of(*runs: Run) -> str:
        page = render_report(make_comparison(make_setting(runs)), MACHINE)
        return next(t for t in outline(page.render()).text.split("\n") if "times: " in t)

    stock = make_run("ddp", step_s=1.0)
    assert said_of(stock).endswith("without the first 2")
    local = make_run("ddp:local_steps=8", step_s=0.5, settling_steps=4)
    assert "the first 2; with local steps without up to 4" in said_of(stock, local)


def test_every_chart_is_described_in_words() -> None:
    parsed = outline(render_report(make_page_comparison(), MACHINE).render())
    assert len(parsed.labels) == 8
    assert any(label.startswith("Step time: zero3 1 s") for label in parsed.labels)


def test_the_page_loads_nothing() -> None:
    page = render_report(make_page_comparison(), MACHINE).render()
    parsed = outline(page)
    assert all(load.startswith("#") for load in parsed.loads)
    assert "script" not in parsed.tags
    assert "link" not in parsed.tags
    assert "@import" not in page
    assert re.findall(r"url\((?!#)", page) == []
    assert "default-src 'none'" in page


def test_names_are_text_and_never_markup() -> None:
    evil = '<script>alert(1)</script>"><img src=x onerror=alert(2)>'
    setting = make_setting([make_run(evil, step_s=1.0), make_run("b", step_s=1.0)], notice=evil)
    page = render_report(
        make_comparison(setting, model=evil, text=evil), {"processor": evil, evil: "value"}
    ).render()
    parsed = outline(page)
    assert "script" not in parsed.tags
    assert "img" not in parsed.tags
    assert "alert(1)" in parsed.text


def test_the_same_comparison_gives_the_same_page() -> None:
    first, second = (render_report(make_page_comparison(), MACHINE) for _ in range(2))
    assert first.render() == second.render()


def test_the_page_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "page.html"
    path.parent.mkdir()
    write_report(path, make_page_comparison(), describe_machine())
    assert path.read_text(encoding="utf-8").endswith("</html>\n")
    assert list(path.parent.iterdir()) == [path]


CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--enable-logging=stderr",
)


def browse(profile: Path, page: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Open a page in a fresh browser that dumps or shoots it, and ends."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", *flags, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def console_lines(browsed: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in browsed.stderr.splitlines() if ":CONSOLE:" in line]


def shoot(profile: Path, page: Path, *flags: str) -> NDArray[np.float32]:
    """A picture of the page: ``[height, width, red green blue]`` from 0 to 1."""
    picture = profile.with_suffix(".png")
    browsed = browse(profile, page, f"--screenshot={picture}", *flags)
    assert console_lines(browsed) == []
    pixels: NDArray[np.float32] = imread(picture)
    return pixels[:, :, :3]


def share_of(pixels: NDArray[np.float32], colour: str) -> float:
    """The share of pixels of a colour, give or take what smoothing of edges does."""
    wanted = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return float((np.abs(pixels - wanted).max(axis=2) < 0.02).mean())


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium")
class TestInABrowser:
    @pytest.fixture
    def page(self, tmp_path: Path) -> Path:
        path = tmp_path / "page.html"
        write_report(path, make_page_comparison(), MACHINE)
        return path

    def test_the_console_stays_silent_and_all_charts_are_in_the_document(
        self, tmp_path: Path, page: Path
    ) -> None:
        browsed = browse(tmp_path / "profile", page, "--dump-dom")
        assert console_lines(browsed) == []
        parsed = outline(browsed.stdout)
        assert parsed.tags.count("svg") == 8
        assert "2.500 after 5 steps" in parsed.text

    def test_a_complaint_would_be_seen(self, tmp_path: Path) -> None:
        page = tmp_path / "page.html"
        page.write_text("<!doctype html><script>no_such_function()</script>")
        browsed = browse(tmp_path / "profile", page, "--dump-dom")
        assert "no_such_function is not defined" in "".join(console_lines(browsed))

    def test_charts_are_drawn_in_light_and_in_dark(self, tmp_path: Path, page: Path) -> None:
        size = "--window-size=1300,2400"
        light = shoot(tmp_path / "light", page, size)
        dark = shoot(tmp_path / "dark", page, size, "--blink-settings=preferredColorScheme=0")
        for pixels in (light, dark):
            # a bar per recipe and setting: each well above what a line or a letter would cover
            assert share_of(pixels, COLOURS[0]) > 0.002
            assert share_of(pixels, COLOURS[1]) > 0.002
            assert share_of(pixels, SHADES[0]) > 0.002
        assert share_of(light, "#ffffff") > 0.5
        assert share_of(light, "#000000") > 0.005  # text in ink
        assert share_of(dark, "#ffffff") > 0.005  # the same text, now light
        assert share_of(dark, "#121212") > 0.5

    def test_a_phone_shows_the_charts_one_below_another_at_full_width(
        self, tmp_path: Path, page: Path
    ) -> None:
        pixels = shoot(tmp_path / "phone", page, "--window-size=500,2400")
        blue = np.abs(pixels - np.array([0, 0x72 / 255, 0xB2 / 255])).max(axis=2) < 0.02
        columns = np.flatnonzero(blue.any(axis=0))
        # the first recipe's bar is the longest and ends at 1 / 1.28 of the axes: past the middle
        assert columns.max() > 0.6 * pixels.shape[1]
