"""What is timed of matrices that travel as factors: all that a rank computes for one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from thinwire.planner.call import FactorWork
from thinwire.sharding.low_rank import RightFactors
from thinwire.train.calibration.clock import Case
from thinwire.train.calibration.sample import Sample
from thinwire.wire.factors import (
    add_outer_products,
    orthonormal,
    row_groups,
    start_factors,
)

__all__ = ["FIGURE", "factor_cases", "work_of"]

FIGURE = "factors"
# small enough to show launches, and large enough to leave the caches; few factors and many
SHAPES = ((64, 64), (256, 256), (1024, 512))
NUM_FACTORS = (2, 8, 32)


def factor_cases(device: torch.device) -> Iterator[Case]:
    """Every shape with every number of factors; the case is ``ROWSxCOLUMNSxFACTORS``."""
    for rows, columns in SHAPES:
        for count in NUM_FACTORS:
            yield Case(
                figure=FIGURE,
                case=f"{rows}x{columns}x{count}",
                size=rows * columns,
                action=_factoring(rows, columns, count, device),
            )


def work_of(sample: Sample) -> FactorWork:
    """What was timed."""
    rows, columns, count = map(int, sample.case.split("x"))
    return FactorWork(rows, columns, count)


def _factoring(rows: int, columns: int, count: int, device: torch.device) -> Callable[[], object]:
    gradient = torch.randn(rows, columns, device=device)
    start, rights = start_factors(count, columns, device), RightFactors()

    def action() -> None:
        """What `thinwire.sharding.low_rank.LowRankAverage` computes, without residuals."""
        matrix = gradient.clone()
        left = orthonormal(start @ matrix.T)
        right = left @ matrix
        add_outer_products(matrix, -left, right)
        for part in row_groups(rows, columns):
            total = torch.zeros_like(matrix[part])
            add_outer_products(total, left[:, part].contiguous(), right)
            matrix[part].copy_(total)
        rights.keep("matrix", right)

    return action
