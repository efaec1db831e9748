"""What an operation does to a sum, whatever the number of ranks."""

from __future__ import annotations

import math

import torch.distributed as dist

from thinwire.comm.reduction import fixed_divisor


def test_an_average_has_no_fixed_divisor() -> None:
    assert fixed_divisor(dist.ReduceOp.AVG) is None
    assert fixed_divisor(dist.ReduceOp(dist.ReduceOp.AVG)) is None


def test_a_factor_common_to_all_ranks_is_a_fixed_divisor() -> None:
    assert fixed_divisor(dist._make_nccl_premul_sum(0.125)) == 8.0  # type: ignore[attr-defined]


def test_what_fsdp2_divides_a_sum_by_is_not_known() -> None:
    divisor = fixed_divisor(dist.ReduceOp.SUM)
    assert divisor is not None
    assert math.isnan(divisor)
