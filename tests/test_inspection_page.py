"""The page of an inspection: complete, escaped, the same for the same file, drawn by a browser."""

from __future__ import annotations

import math
import subprocess
from pathlib import Path

import pytest
import torch

from made_checkpoints import make_tensors
from test_inspection_inspector import INT4, INT8, MadeSource
from test_page import CHROMIUM, FLAGS
from thinwire.formats import parse_format
from thinwire.inspection import Inspection, InspectRequest, inspect
from thinwire.inspection.inspection_page import render_inspection_page, write_inspection_page

EVIL = "<script>alert('x')</script>&w"
FP32 = parse_format("fp32")


def make_inspection(*, files: int = 1) -> Inspection:
    tensors = make_tensors() | {EVIL: torch.randn(64, 64), "zero": torch.zeros(64, 64)}
    tensors["broken"] = torch.full((64, 64), math.nan)
    request = InspectRequest(formats=(INT8, INT4, FP32), top=5)
    return inspect([MadeSource(tensors)] * files, request)


def test_the_page_says_what_the_tables_say() -> None:
    page = render_inspection_page(make_inspection()).render()
    for said in ("int4/128 hurts none of 5 layers", "blocks.1.mlp.weight", "lossless", "broken"):
        assert said in page
    # two charts over all layers and one for each of the five worst
    assert page.count("<svg") == 7


def test_names_from_a_file_are_escaped() -> None:
    page = render_inspection_page(make_inspection()).render()
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_the_same_inspection_gives_the_same_page() -> None:
    inspection = make_inspection(files=2)
    first = render_inspection_page(inspection).render()
    assert render_inspection_page(inspection).render() == first
    identifiers = [part.split('"')[0] for part in first.split(' id="')[1:]]
    assert len(set(identifiers)) == len(identifiers)


def test_a_file_of_which_nothing_was_measured_has_a_page(tmp_path: Path) -> None:
    inspection = inspect([MadeSource({"norm": torch.ones(4)})], InspectRequest(formats=(INT4,)))
    write_inspection_page(tmp_path / "page.html", inspection)
    assert "No layer was measured" in (tmp_path / "page.html").read_text()


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium")
def test_a_browser_draws_it_without_complaint(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    write_inspection_page(page, make_inspection())
    assert CHROMIUM is not None
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    done = subprocess.run(
        [*command, page.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    assert [line for line in done.stderr.splitlines() if ":CONSOLE:" in line] == []
    assert done.stdout.count("<svg") == 7
