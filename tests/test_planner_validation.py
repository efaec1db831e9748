"""Validation: published figures are met within the stated bounds, and a broken bound shows."""

from __future__ import annotations

import dataclasses

import pytest

from thinwire.planner.validation import validate
from thinwire.planner.validation.formulas import ZERO_TABLE, formula_groups
from thinwire.planner.validation.report import Group, Report, Row
from thinwire.planner.validation.steps import step_groups


def test_every_bound_holds() -> None:
    report = validate()
    assert report.holds, [group.name for group in report.groups if not group.holds]
    document = report.to_json()
    # the promise: mean at most 8 %, none above 15 %, fitted rows not counted
    assert document["step_mean_error"] <= 0.08
    assert document["step_max_error"] <= 0.15
    assert len(report.step_rows) == 20


@pytest.mark.parametrize("group", step_groups(), ids=lambda group: group.name[:20])
def test_one_constant_is_fitted_on_the_first_row(group: Group) -> None:
    fitted = [row.is_fitted for row in group.rows]
    assert fitted == [True] + [False] * (len(group.rows) - 1)
    assert abs(group.rows[0].error) < 1e-6
    assert group.rows[0] not in group.predicted_rows


def test_tables_agree_to_the_printed_digits() -> None:
    """ZeRO's table 1: every entry within half of its last printed digit, or the paper's own slip.

    It cuts 41.25 up to 41.3 but 4187.5 down to 4187, so a whole unit of the last digit is allowed.
    """
    group = next(group for group in formula_groups() if group.name.startswith("ZeRO, bytes"))
    assert len(group.rows) == 3 * len(ZERO_TABLE)
    for row in group.rows:
        digits = str(row.published).removesuffix(".0")
        decimals = len(digits.partition(".")[2])
        assert abs(row.predicted - row.published) <= 10.0**-decimals, row.name


def test_a_broken_bound_shows() -> None:
    group = formula_groups()[0]
    row = dataclasses.replace(group.rows[0], predicted=2 * group.rows[0].published)
    broken = dataclasses.replace(group, rows=(row, *group.rows[1:]))
    assert not broken.holds
    assert not Report((broken,)).holds
    unbounded = dataclasses.replace(broken, bound_mean=None, bound_max=None)
    assert Report((unbounded,)).holds


def test_fitted_rows_are_no_evidence() -> None:
    rows = (
        Row(name="a", published=1.0, predicted=1.0, is_fitted=True),
        Row(name="b", published=2.0, predicted=2.2),
    )
    group = Group(name="g", source="s", unit="s", rows=rows, bound_mean=0.05)
    assert group.mean_error == pytest.approx(0.1)
    assert not group.holds
