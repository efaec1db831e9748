"""Overheads are found again in the steps that they make."""

from __future__ import annotations

import dataclasses

import pytest

from planner_settings import cluster_of
from thinwire.planner.hardware import OVERHEADS, Cluster
from thinwire.train.calibration.fit import least_squares
from thinwire.train.calibration.fit_steps import NUDGES, fit_steps, predicted_step_s
from thinwire.train.calibration.sample import Sample
from thinwire.train.calibration.steps import (
    NARROWEST,
    OVERHEAD_OF,
    TINY_LAYERS,
    WIDEST,
    wide_hidden,
)

PLAIN = cluster_of("cpu", hosts=2, ranks=1, bit_per_s=1e9, backend="gloo")
TRUE = {
    "unit_s": dict(zip(OVERHEADS, (1e-4, 2e-4, 1e-3, 4e-3, 5e-3), strict=True)),
    "parameter_s": dict(zip(OVERHEADS, (8e-9, 7e-9, 1e-8, 6e-9, 9e-9), strict=True)),
    "step_s": dict(zip(OVERHEADS, (3e-3, 5e-3, 2e-3, 1e-3, 4e-3), strict=True)),
}


def with_overheads(cluster: Cluster, overheads: dict[str, dict[str, float]]) -> Cluster:
    device = dataclasses.replace(cluster.device, **overheads)  # type: ignore[arg-type]  # by name
    return dataclasses.replace(cluster, device=device)


def samples_of(cluster: Cluster, *, faster: float = 1.0) -> list[Sample]:
    """What the planner says of every run."""
    sizes = [("tiny step", layers) for layers in TINY_LAYERS]
    sizes.append(("wide step", wide_hidden(1e9)))
    samples = []
    for recipe in OVERHEAD_OF:
        for figure, size in sizes:
            unknown = Sample(figure=figure, case=recipe, size=size, seconds=(1.0,))
            seconds = predicted_step_s(unknown, cluster) / faster
            samples.append(dataclasses.replace(unknown, seconds=(seconds,)))
    return samples


def test_overheads_are_recovered() -> None:
    found, residual = fit_steps(samples_of(with_overheads(PLAIN, TRUE)), PLAIN)
    assert residual.largest < 1e-6
    for name in NUDGES:
        assert found[name] == pytest.approx(TRUE[name], rel=1e-3)


def test_steps_faster_than_the_planner_says_have_none() -> None:
    found, residual = fit_steps(samples_of(PLAIN, faster=1.25), PLAIN)
    assert found == {name: dict.fromkeys(OVERHEADS, 0.0) for name in NUDGES}
    assert residual.median == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("link_bit_per_s", "width"),
    [(None, WIDEST), (100e9, WIDEST), (1e3, NARROWEST), (200e6, 208), (50e6, 96)],
)
def test_a_wide_model_fits_its_link(link_bit_per_s: float | None, width: int) -> None:
    assert wide_hidden(link_bit_per_s) == width


def test_least_squares_leaves_out_what_nothing_answers_to() -> None:
    # the second column is zero, the third would be negative
    rows = [(1.0, 0.0, 1.0), (2.0, 0.0, 1.0), (3.0, 0.0, 1.0)]
    assert least_squares(rows, [1.0, 3.0, 5.0], scales=[1.0, 1.0, 1.0]) == pytest.approx(
        [22 / 14, 0.0, 0.0]
    )
