"""From what ranks measured to what is shown: means, spreads, units, and the JSON document."""

from __future__ import annotations

import json

import pytest

from made_runs import make_comparison, make_run, make_setting
from thinwire.train.comparison import Run
from thinwire.train.job import RankResult

STEPS = 12
SETTLING = 2
COUNTED = STEPS - SETTLING


def make_rank(rank: int, *, nic_bytes: int | None) -> RankResult:
    """Rank 1 sends twice what rank 0 sends."""
    return RankResult(
        parameters=1000,
        losses=(*(5.0 for _ in range(STEPS - 1)), 3.0),
        step_s=(9.0, 8.0, *(0.1 * (index + 1) for index in range(COUNTED))),
        settling_steps=SETTLING,
        skipped_steps=0,
        collectives=(
            {
                "name": "all_gather",
                "calls": 1,
                "within_bytes": 100 * COUNTED * (rank + 1),
                "across_bytes": 400 * COUNTED * (rank + 1),
                "bf16_bytes": 0,
                "formats": ["int8/256", "bf16"],
            },
        ),
        nic_bytes=nic_bytes,
        validation_loss=2.0,
        peak_bytes=1000 * (rank + 1),
    )


def make_measured(nic_bytes: int | None = 1800 * COUNTED) -> Run:
    ranks = [make_rank(rank, nic_bytes=nic_bytes) for rank in range(2)]
    return Run.from_ranks("zeropp", ranks, ranks_per_host=2, predicted_step_s=0.5)


def test_bytes_are_per_step_and_the_mean_over_ranks() -> None:
    run = make_measured()
    assert run.across_bytes_per_rank == 600
    assert run.sent_bytes_per_rank == 750
    assert run.bits_per_parameter == 8 * 600 / 1000
    assert run.collectives[0].formats == ("bf16", "int8/256")


def test_a_hosts_interface_is_shared_out_over_its_ranks() -> None:
    assert make_measured().nic_bytes_per_rank == 900
    assert make_measured(nic_bytes=None).nic_bytes_per_rank is None


def test_times_leave_out_the_settling_steps() -> None:
    step_s = make_measured().step_s
    assert (step_s.min, step_s.max) == (0.1, 1.0)
    assert step_s.median == pytest.approx(0.55)


def test_with_local_steps_times_are_means_from_meeting_to_meeting() -> None:
    ranks = [make_rank(rank, nic_bytes=None) for rank in range(2)]
    run = Run.from_ranks(
        "ddp:local_steps=5", ranks, ranks_per_host=1, predicted_step_s=None, period=5
    )
    # ten counted steps of 0.1 to 1.0 s: the median step would be 0.55 s, whatever a meeting takes
    assert (run.step_s.min, run.step_s.max) == pytest.approx((0.3, 0.8))
    assert run.step_s.median == pytest.approx(0.55)
    assert run.measured == COUNTED // 5
    assert make_measured().measured == COUNTED


def test_the_train_loss_is_the_mean_of_the_last_tenth() -> None:
    assert make_measured().train_loss == 3.0  # one of twelve steps
    long = make_run("zero3", step_s=1, losses=(*(5.0 for _ in range(28)), 2.0, 4.0))
    assert long.train_loss == pytest.approx((5.0 + 2.0 + 4.0) / 3)
    assert make_run("zero3", step_s=1, losses=(5.0, None)).train_loss is None


def test_memory_is_that_of_the_worst_rank() -> None:
    assert make_measured().peak_bytes == 2000


RUN_KEYS = {
    "recipe",
    "step_s",
    "sent_bytes_per_rank",
    "across_bytes_per_rank",
    "nic_bytes_per_rank",
    "bits_per_parameter",
    "train_loss",
    "validation_loss",
    "peak_bytes",
    "predicted_step_s",
}


def test_the_document_has_exactly_the_keys_that_programs_rely_on() -> None:
    setting = make_setting([make_run("zero3", step_s=1.0), make_run("zeropp", step_s=0.5)])
    document = make_comparison(setting).to_json()
    assert set(document) == {"world", "hosts", "parameters", "link", "runs"}
    assert set(document["link"]) == {"requested_bit_per_s", "measured_bit_per_s"}
    for run in document["runs"]:
        assert set(run) == RUN_KEYS
        assert set(run["step_s"]) == {"median", "min", "max"}
    assert [run["recipe"] for run in document["runs"]] == ["zero3", "zeropp"]
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_the_document_says_when_nothing_shaped_the_link() -> None:
    shaped = make_setting([make_run("zero3", step_s=1.0)])
    unshaped = make_setting([make_run("zero3", step_s=0.2)], link_bit_per_s=None)
    document = make_comparison(shaped, unshaped).to_json()
    assert set(document["unshaped"]) == {"link", "runs"}
    assert document["unshaped"]["link"] is None
    assert document["unshaped"]["runs"][0]["step_s"]["median"] == pytest.approx(0.2)
