"""Published step times against the planner's, with at most one fitted constant per cluster."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from thinwire.planner.group import Parallelism
from thinwire.planner.hardware import Cluster
from thinwire.planner.hardware_file import load_backend, load_device, load_host, load_link
from thinwire.planner.models import config_workload
from thinwire.planner.models.config import ModelConfig
from thinwire.planner.models.gpt import GPTShape, gpt_workload
from thinwire.planner.prediction import step_s
from thinwire.planner.setting import Setting
from thinwire.planner.timeline import Overlap
from thinwire.planner.validation.report import Group, Row
from thinwire.planner.workload import Workload
from thinwire.recipe import Recipe
from thinwire.recipes import parse_recipe

__all__ = ["step_groups"]

# the free constant lies within a factor of a hundred of the preset, and is found to 1e-9
SEARCHED = 100.0
BISECTIONS = 50


def step_groups() -> tuple[Group, ...]:
    """Every group of published step times, fitted on its first row and predicted elsewhere."""
    tables = _published()
    return tuple(_group(table, tables) for table in tables["groups"])


def _group(table: Mapping[str, Any], bounds: Mapping[str, Any]) -> Group:
    rows = [{**_shared(table), **row} for row in table["rows"]]
    runs = [(_setting(row), parse_recipe(row["recipe"])) for row in rows]
    factor = _fit(table["free"], *runs[0], rows[0]["published_s"])
    predicted = [
        Row(
            name=row["name"],
            published=row["published_s"],
            predicted=step_s(_scaled(setting, table["free"], factor), recipe),
            is_fitted=index == 0,
        )
        for index, (row, (setting, recipe)) in enumerate(zip(rows, runs, strict=True))
    ]
    is_bounded = table.get("bounded", True)
    return Group(
        name=table["name"],
        source=table["source"],
        unit="s",
        rows=tuple(predicted),
        free=f"{table['free']} x {factor:.3g}, fitted on {rows[0]['name']}",
        bound_mean=bounds["bound_mean"] if is_bounded else None,
        bound_max=bounds["bound_max"] if is_bounded else None,
    )


def _fit(free: str, setting: Setting, recipe: Recipe, published_s: float) -> float:
    """The factor at which the predicted step is the published one; the step falls with it."""
    low, high = -math.log(SEARCHED), math.log(SEARCHED)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if step_s(_scaled(setting, free, math.exp(middle)), recipe) > published_s:
            low = middle
        else:
            high = middle
    return math.exp((low + high) / 2)


def _scaled(setting: Setting, free: str, factor: float) -> Setting:
    """The setting with its free constant multiplied."""
    cluster = setting.cluster
    if free == "link":
        return dataclasses.replace(
            setting, cluster=cluster.with_link(factor * cluster.link.bit_per_s)
        )
    return dataclasses.replace(setting, compute_scale=factor)


def _setting(row: Mapping[str, Any]) -> Setting:
    return Setting(
        workload=_workload(row),
        cluster=_cluster(row),
        micro_batch=row.get("micro_batch", 1),
        accumulate=row.get("accumulate", 1),
        parallelism=Parallelism(
            tp=row.get("tp", 1),
            pp=row.get("pp", 1),
            interleave=row.get("interleave", 1),
            sequence=row.get("sequence", False),
        ),
        selective=row.get("selective", False),
        overlap=Overlap(gather=row["overlap_gather"], reduce=row["overlap_reduce"]),
    )


def _workload(row: Mapping[str, Any]) -> Workload:
    if "config" in row:
        config = ModelConfig(name=row["name"], values=row["config"])
        return config_workload(config, tokens=row["tokens"], fused=row["fused"])
    shape = GPTShape(
        layers=row["layers"],
        hidden=row["hidden"],
        heads=row["heads"],
        vocabulary=row["vocabulary"],
        tied=True,
    )
    return gpt_workload(
        shape, tokens=row["tokens"], fused=row["fused"], dropout=row.get("dropout", False)
    )


def _cluster(row: Mapping[str, Any]) -> Cluster:
    device = load_device(row["device"], row.get("device_changes", {}))
    link = {"bit_per_s": row["link_bit_per_s"], "latency_s": row["latency_s"]}
    return Cluster(
        hosts=row["hosts"],
        ranks_per_host=row["ranks_per_host"],
        device=device,
        host=load_host(device.kind),
        link=load_link(row["protocol"], {**link, "source": "published"}),
        backend=load_backend("nccl"),
    )


def _shared(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key != "rows"}


@cache
def _published() -> dict[str, Any]:
    path = Path(__file__).parent / "published_steps.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))
