"""The outcome of a validation: what was published beside what is predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Group", "Report", "Row"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One published number.

    Attributes:
        name: which one.
        published: as the source gives it, in the group's unit.
        predicted: by the planner, in the same unit.
        is_fitted: whether the group's free constant was fitted on it.
    """

    name: str
    published: float
    predicted: float
    is_fitted: bool = False

    @property
    def error(self) -> float:
        """The prediction's error as a share of the published number, with its sign."""
        return self.predicted / self.published - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Published numbers of one source on one machine.

    Attributes:
        name: which.
        source: where they are published, and what it does not say.
        unit: of the numbers.
        rows: in the order of the source.
        free: what was fitted and its value, in words; ``None``: nothing was.
        bound_mean: that the mean error must not exceed; ``None``: no bound is promised.
        bound_max: that no error must exceed; ``None``: no bound is promised.
    """

    name: str
    source: str
    unit: str
    rows: tuple[Row, ...]
    free: str | None = None
    bound_mean: float | None = None
    bound_max: float | None = None

    @property
    def predicted_rows(self) -> tuple[Row, ...]:
        """The rows that were not fitted: only they are evidence."""
        return tuple(row for row in self.rows if not row.is_fitted)

    @property
    def mean_error(self) -> float:
        """The mean of the errors' sizes over the predicted rows."""
        return mean_error(self.predicted_rows)

    @property
    def max_error(self) -> float:
        """The largest error's size over the predicted rows."""
        return max((abs(row.error) for row in self.predicted_rows), default=0.0)

    @property
    def holds(self) -> bool:
        """Whether the bounds are kept."""
        within_mean = self.bound_mean is None or self.mean_error <= self.bound_mean
        return within_mean and (self.bound_max is None or self.max_error <= self.bound_max)

    def to_json(self) -> dict[str, Any]:
        """The group as plain data."""
        return {
            "name": self.name,
            "source": self.source,
            "unit": self.unit,
            "free": self.free,
            "mean_error": self.mean_error,
            "max_error": self.max_error,
            "bound_mean": self.bound_mean,
            "bound_max": self.bound_max,
            "holds": self.holds,
            "rows": [
                {
                    "name": row.name,
                    "published": row.published,
                    "predicted": row.predicted,
                    "error": row.error,
                    "fitted": row.is_fitted,
                }
                for row in self.rows
            ],
        }


@dataclass(frozen=True, slots=True)
class Report:
    """All groups.

    Attributes:
        groups: in the order of the checks.
    """

    groups: tuple[Group, ...]

    @property
    def holds(self) -> bool:
        """Whether every bound is kept."""
        return all(group.holds for group in self.groups)

    @property
    def step_rows(self) -> tuple[Row, ...]:
        """The predicted step times for which a bound is promised."""
        return tuple(
            row
            for group in self.groups
            if group.unit == "s" and group.bound_max is not None
            for row in group.predicted_rows
        )

    def to_json(self) -> dict[str, Any]:
        """The document that ``thinwire validate --json`` prints."""
        return {
            "holds": self.holds,
            "step_mean_error": mean_error(self.step_rows),
            "step_max_error": max((abs(row.error) for row in self.step_rows), default=0.0),
            "groups": [group.to_json() for group in self.groups],
        }


def mean_error(rows: Sequence[Row]) -> float:
    """The mean of the errors' sizes."""
    return sum(abs(row.error) for row in rows) / len(rows) if rows else 0.0
