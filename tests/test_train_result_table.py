"""Rows and headings agree, and what is not known is not shown as a number."""

from __future__ import annotations

from made_runs import make_run
from thinwire.train.result_table import headings, rows


def test_a_row_has_a_cell_per_heading_in_the_same_order() -> None:
    runs = [make_run("zero3", step_s=1.0), make_run("zeropp", step_s=0.25)]
    cells = [dict(zip(headings(runs), row, strict=True)) for row in rows(runs)]
    assert [row["recipe"] for row in cells] == ["zero3", "zeropp"]
    assert cells[1]["step"] == "250 ms"
    assert cells[1]["sent per rank"] == "3 MB"
    assert cells[1]["bits / parameter"] == "24.00"
    assert "planned" not in cells[1]


def test_what_is_not_known_is_a_dash_and_what_is_not_finite_says_so() -> None:
    runs = [
        make_run("a", step_s=1.0, predicted_step_s=0.9),
        make_run("b", step_s=1.0, nic_bytes_per_rank=None, validation_loss=None, losses=(None,)),
    ]
    first, second = (dict(zip(headings(runs), row, strict=True)) for row in rows(runs))
    assert first["planned"] == "900 ms"
    assert second["planned"] == second["by interface"] == "-"
    assert second["train loss"] == second["held-out loss"] == "not finite"
