"""What is said must follow from the figures, in both directions."""

from __future__ import annotations

from typing import Any

import pytest

from made_runs import make_run, make_setting
from thinwire.train.comparison import Run
from thinwire.train.verdict import Outcome, Verdict, conclude, judge

# 100 Mbit/s, 1 % less as measured, carries 3 MB in 0.24 s
BASE_BYTES = 3e6


def compressed(step_s: float, **changes: Any) -> Run:
    return make_run("small", step_s=step_s, gathered_bytes=5e5, reduced_bytes=1e5, **changes)


def verdict(base_step_s: float, run: Run, **setting: Any) -> Verdict:
    base = make_run("base", step_s=base_step_s)
    assert base.sent_bytes_per_rank == BASE_BYTES
    return judge(make_setting([base, run], **setting))[1]


def test_a_faster_recipe_pays_and_by_how_much() -> None:
    found = verdict(0.3, compressed(0.1))
    assert found.outcome is Outcome.PAYS
    assert "3.0 times faster (100 ms against 300 ms)" in found.text
    assert "5.0 times fewer bytes" in found.text
    assert "compute-bound" not in found.text


def test_a_slower_recipe_does_not_pay_and_compute_is_named_where_it_is_the_cause() -> None:
    found = verdict(1.0, compressed(1.5))  # the link needs 24 % of the step
    assert found.outcome is Outcome.LOSES
    assert "1.5 times as long" in found.text
    assert "compute-bound: the link alone needs 24 %" in found.text


def test_a_slower_recipe_on_a_full_link_is_not_called_compute_bound() -> None:
    found = verdict(0.25, compressed(0.5))
    assert found.outcome is Outcome.LOSES
    assert "compute-bound" not in found.text
    assert "an exchange that does not fill the link" in found.text


def test_without_a_link_the_time_is_computing_and_coding() -> None:
    found = verdict(0.3, compressed(0.6), link_bit_per_s=None)
    assert "No link holds the bytes back" in found.text


def test_two_ranks_on_a_host_need_the_link_twice_as_long() -> None:
    found = verdict(1.0, compressed(1.5), ranks_per_host=2)
    assert "48 %" in found.text


@pytest.mark.parametrize("step_s", [0.95, 1.0, 1.05])
def test_a_difference_within_noise_is_none(step_s: float) -> None:
    found = verdict(1.0, compressed(step_s))
    assert found.outcome is Outcome.EVEN
    assert "makes no difference in time here" in found.text


def test_a_recipe_that_sends_more_is_not_excused() -> None:
    found = verdict(1.0, make_run("large", step_s=2.0, gathered_bytes=5e6))
    assert found.outcome is Outcome.LOSES
    assert "2.0 times as many bytes" in found.text
    assert "compute-bound" not in found.text


@pytest.mark.parametrize(
    ("loss", "said"),
    [(2.5, "+0.00 %"), (2.525, "+1.00 %"), (2.475, "-1.00 %"), (None, "not finite")],
)
def test_the_loss_is_told_whatever_the_speed(loss: float | None, said: str) -> None:
    assert said in verdict(1.0, compressed(0.1, validation_loss=loss)).text


def test_a_baseline_whose_loss_is_not_finite_is_told() -> None:
    base = make_run("base", step_s=1.0, validation_loss=None)
    _, found = judge(make_setting([base, compressed(0.5)]))
    assert "unlike the first one's" in found.text


def test_skipped_steps_are_told() -> None:
    assert "2 steps were skipped" in verdict(1.0, compressed(0.1, skipped_steps=2)).text


def test_the_first_recipe_says_what_share_of_its_step_the_link_needs() -> None:
    first, _ = judge(make_setting([make_run("base", step_s=0.3), compressed(0.1)]))
    assert first.outcome is None
    assert "needs 81 % of that time" in first.text


def test_a_single_host_sends_nothing_and_is_told_so() -> None:
    silent = {"gathered_bytes": 0, "reduced_bytes": 0}
    runs = [make_run("a", step_s=1.0, **silent), make_run("b", step_s=2.0, **silent)]
    first, second = judge(make_setting(runs, link_bit_per_s=None))
    assert "0 B sent" in first.text
    assert "as many bytes" in second.text


def test_the_conclusion_names_every_recipe_once_in_its_group() -> None:
    runs = [
        make_run("base", step_s=1.0),
        make_run("fast", step_s=0.5),
        make_run("slow", step_s=2.0),
        make_run("same", step_s=1.0),
    ]
    assert conclude(make_setting(runs)) == (
        "Over a link of 100 Mbit/s, against base: pays: fast (2x); does not pay: slow (0.5x); "
        "makes no difference: same (1x)."
    )
    assert conclude(make_setting(runs, link_bit_per_s=None)).startswith("Without a shaped link")


@pytest.mark.parametrize(
    ("step_s", "loss", "outcome"),
    [
        (0.1, 2.5 * 1.01, Outcome.PAYS),  # as far apart as rounding alone takes them
        (0.1, 2.5 * 1.02, Outcome.COSTS_LOSS),
        (0.1, 2.5 * 0.5, Outcome.PAYS),
        (0.1, None, Outcome.DIVERGES),
        (1.0, 2.5 * 1.02, Outcome.LOSES),
        (1.0, None, Outcome.DIVERGES),
        (3.0, 2.5 * 1.02, Outcome.LOSES),
    ],
)
def test_time_that_is_paid_for_in_loss_is_no_gain(
    step_s: float, loss: float | None, outcome: Outcome
) -> None:
    found = verdict(1.0, compressed(step_s, validation_loss=loss))
    assert found.outcome is outcome
    assert ("pays: a step" in found.text) == (outcome is Outcome.PAYS)
    assert ("what more steps make of it" in found.text) == (loss == 2.5 * 1.02)


def test_a_recipe_that_diverges_never_pays_even_if_the_first_one_did_too() -> None:
    base = make_run("base", step_s=1.0, validation_loss=None)
    _, found = judge(make_setting([base, compressed(0.5, validation_loss=None)]))
    assert found.outcome is Outcome.DIVERGES
    assert "not finite" in found.text


@pytest.mark.parametrize(("first", "second"), [(1, 0), (0, 1), (2, 2)])
def test_where_steps_were_skipped_nothing_is_concluded_from_times(first: int, second: int) -> None:
    base = make_run("base", step_s=1.0, skipped_steps=first)
    setting = make_setting([base, compressed(0.5, skipped_steps=second)])
    assert judge(setting)[1].outcome is Outcome.SKIPS
    assert "cannot be judged, for steps were skipped: small (2x)" in conclude(setting)


def test_a_recipe_that_is_a_little_faster_is_not_told_that_coding_costs_more() -> None:
    assert "coding" not in verdict(1.0, compressed(0.95)).text
    assert "costs" in verdict(1.0, compressed(1.05)).text


def test_the_conclusion_tells_a_higher_loss_and_a_training_that_is_lost() -> None:
    runs = [
        make_run("base", step_s=1.0),
        make_run("fast", step_s=0.5),
        make_run("rough", step_s=0.25, validation_loss=2.7),
        make_run("lost", step_s=0.2, validation_loss=None),
    ]
    assert conclude(make_setting(runs)) == (
        "Over a link of 100 Mbit/s, against base: pays: fast (2x); is faster at a higher loss: "
        "rough (4x); does not pay, for its loss is not finite: lost (5x)."
    )


@pytest.mark.parametrize(("measured", "said"), [(1, "once only"), (2, "twice only")])
def test_a_conclusion_from_too_few_steps_says_so(measured: int, said: str) -> None:
    runs = [make_run("base", step_s=1.0), make_run("fast", step_s=0.5, measured=measured)]
    assert said in conclude(make_setting(runs))
    assert "only" not in conclude(make_setting([make_run("a", step_s=1.0), compressed(0.5)]))


def test_a_single_recipe_has_no_verdict() -> None:
    assert "nothing to hold it against" in conclude(make_setting([make_run("a", step_s=1.0)]))
