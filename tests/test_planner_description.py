"""The document of a plan says what was planned and where every number comes from."""

from __future__ import annotations

import dataclasses
import html
import json
from pathlib import Path

import pytest

from planner_settings import accelerators
from thinwire.cli import main
from thinwire.planner.description import describe, number_sources
from thinwire.planner.source import SOURCES, kind_of
from thinwire.planner.trust import confidence

PLAN = ["plan", "--model", "mixtral-8x7b", "--device", "h100-80gb", "--recipes", "zero3,hsdp"]
OVER_A_LINK = ["--hosts", "4", "--ranks", "8", "--link", "400gbit", "--latency", "5us"]


def document(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    assert main([*arguments, "--json"]) in (0, 3)
    read: dict[str, object] = json.loads(capsys.readouterr().out)
    return read


def test_the_document_says_what_was_planned(capsys: pytest.CaptureFixture[str]) -> None:
    read = document([*PLAN, *OVER_A_LINK], capsys)
    assert read["model"] == {
        "name": "mixtral-8x7b",
        "parameters": 46_702_792_704,
        "active_parameters": 12_879_925_248,
        "tokens": 2048,
        "assumptions": [],
    }
    assert read["cluster"] == {
        "hosts": 4,
        "ranks_per_host": 8,
        "device": "h100-80gb",
        "link": {"bit_per_s": 4e11, "latency_s": 5e-6, "loss": 0.0, "protocol": "rdma"},
    }
    assert {"choice", "reasons", "recipes", "confidence", "sources"} <= set(read)


def test_a_single_host_has_no_link(capsys: pytest.CaptureFixture[str]) -> None:
    read = document(["plan", "--model", "25M", "--recipes", "ddp"], capsys)
    assert read["cluster"]["link"] is None  # type: ignore[index]
    (told,) = read["model"]["assumptions"]  # type: ignore[index]
    assert "nearest to 25M parameters" in told


def test_every_number_has_its_source_in_the_document_and_on_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    read = document([*PLAN, *OVER_A_LINK, "--html", str(page)], capsys)
    sources: dict[str, dict[str, str]] = read["sources"]  # type: ignore[assignment]
    assert set(sources) == {"device", "link", "backend", "host"}
    content = html.unescape(page.read_text())
    for part, texts in sources.items():
        for name, text in texts.items():
            assert kind_of(text) in SOURCES
            assert f'<th scope="row">{part}: {name}</th><td>{text}</td>' in content


def test_no_number_of_the_hardware_is_left_out() -> None:
    cluster = accelerators().cluster
    sources = number_sources(cluster)
    for part in ("device", "link", "backend", "host"):
        item = getattr(cluster, part)
        numbers = {
            field.name
            for field in dataclasses.fields(item)
            if isinstance(getattr(item, field.name), (int, float))
            and not isinstance(getattr(item, field.name), bool)
        }
        assert numbers - {"reduce_scatter_passes"} <= set(sources[part])


def test_the_confidence_is_that_of_the_sentence() -> None:
    setting = accelerators()
    told = describe(setting)["confidence"]
    assert set(told) == {"compute", "network", "codecs", "memory overhead"}
    for term, kind in told.items():
        assert f"{term} {kind}" in confidence(setting.cluster)
