"""The planner against numbers that others published.

report = validate()
report.holds          whether every promised bound is kept
report.to_json()      the document of ``thinwire validate --json``
"""

from __future__ import annotations

from thinwire.planner.validation.formulas import formula_groups
from thinwire.planner.validation.report import Report
from thinwire.planner.validation.steps import step_groups

__all__ = ["validate"]


def validate() -> Report:
    """Predict everything that is published here, and hold it against what was published."""
    return Report((*step_groups(), *formula_groups()))
