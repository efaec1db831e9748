"""What a plan says of its own numbers: their sources, and where they were not measured."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from thinwire.planner.hardware import Cluster
from thinwire.planner.ranking import make_plan
from thinwire.planner.request import ClusterRequest, PlanRequest
from thinwire.planner.trust import beyond_scope, confidence
from thinwire.recipes import parse_recipes

FILE = """
[cluster]
hosts = 2
ranks_per_host = 1
shaped = {shaped}
[device]
preset = "cpu"
flop_per_s = {{ fp32 = 1e11, bf16 = 1e11 }}
source = "{source}"
[link]
bit_per_s = 2.0e8
latency_s = 1e-4
source = "{source}"
"""


def request(
    folder: Path, *, source: str = "calibrated: here", shaped: str = "true", **options: object
) -> ClusterRequest:
    file = folder / "cluster.toml"
    file.write_text(FILE.format(source=source, shaped=shaped))
    return dataclasses.replace(ClusterRequest(file=file), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"hosts": 64}, ("2 hosts of 1 rank", "64 hosts of 1 rank")),
        ({"ranks": 4}, ("2 hosts of 1 rank", "2 hosts of 4 ranks")),
        ({"link": "100gbit"}, ("a shaped link of 200", "one of 100")),
        ({"link": "1gbit", "shaped": "false"}, ("an unshaped link of 200", "one of 1")),
    ],
)
def test_a_plan_beyond_what_was_measured_says_so(
    options: dict[str, object], told: tuple[str, str], tmp_path: Path
) -> None:
    asked = request(tmp_path, **options)  # type: ignore[arg-type]
    (sentence,) = beyond_scope(asked.cluster())
    assert all(words in sentence for words in told)
    setting = PlanRequest(model="gpt:2x64x2", seq=32, cluster=asked).setting()
    assert sentence in make_plan(setting, parse_recipes("zero3,qsdp")).reasons


def test_nothing_is_said_of_what_was_measured_or_never_calibrated(tmp_path: Path) -> None:
    assert beyond_scope(request(tmp_path).cluster()) == []
    # the rate that was asked for, and what the shaped link gave
    assert beyond_scope(request(tmp_path, link="195mbit").cluster()) == []
    given = request(tmp_path, source="given", hosts=64, link="1gbit")
    assert beyond_scope(given.cluster()) == []


def calibrated(cluster: Cluster, *, but: str) -> Cluster:
    """A cluster all of whose numbers are calibrated except one of the device's or the link's."""
    parts = {}
    for name in ("device", "link", "backend"):
        part = getattr(cluster, name)
        sources = {key: "assumed" if key == but else "calibrated" for key in part.sources}
        parts[name] = dataclasses.replace(part, sources=sources)
    return dataclasses.replace(cluster, **parts)


@pytest.mark.parametrize(
    ("term", "number"),
    [
        *(("compute", name) for name in ("flop_per_s", "memory_efficiency")),
        *(("compute", name) for name in ("unit_s", "parameter_s", "step_s")),
        *(("network", name) for name in ("latency_s", "bit_per_s", "call_s")),
        *(("network", name) for name in ("within_bytes_per_s", "within_latency_s")),
        ("codecs", "codec"),
    ],
)
def test_every_number_counts_for_its_term(term: str, number: str) -> None:
    cluster = ClusterRequest(hosts=2, ranks=2, link="1gbit").cluster()
    assert "assumed" not in confidence(calibrated(cluster, but="nothing"))
    assert f"{term} assumed" in confidence(calibrated(cluster, but=number))


def test_what_is_not_used_does_not_count() -> None:
    alone = ClusterRequest(hosts=2, link="1gbit").cluster()
    assert "assumed" not in confidence(calibrated(alone, but="within_bytes_per_s"))
    assert "network" not in confidence(ClusterRequest().cluster())
