"""Factors: an orthonormal basis in a fixed order of operations, and products of factors."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from thinwire.wire import factors
from thinwire.wire.factors import (
    add_outer_products,
    orthonormal,
    row_groups,
    start_factors,
    unit_scaled,
)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("numel", [4, 7, 128, 1001])
def test_the_basis_is_orthonormal_and_spans_the_same_space(numel: int) -> None:
    vectors = normal(4, numel)
    basis = orthonormal(vectors)
    # sums of products of two vectors of length one: a few roundings each
    assert (basis @ basis.T - torch.eye(4)).abs().max() < 1e-5
    assert (vectors @ basis.T @ basis - vectors).abs().max() < 1e-4


def test_a_vector_that_others_span_becomes_zero() -> None:
    one, other = normal(2, 50)
    basis = orthonormal(torch.stack([one, 3 * one, torch.zeros(50), other]))
    assert torch.equal(basis.norm(dim=1) > 0.5, torch.tensor([True, False, False, True]))
    assert not basis[1:3].any()


@pytest.mark.parametrize("scale", [1e30, 1e-30, 2.0**-140])
def test_huge_and_tiny_vectors_have_the_basis_of_ordinary_ones(scale: float) -> None:
    basis = orthonormal(normal(3, 40) * scale)
    # the smallest scale leaves a dozen significant bits, as subnormal numbers have
    assert (basis @ basis.T - torch.eye(3)).abs().max() < 1e-5


@pytest.mark.parametrize("odd", [math.inf, -math.inf, math.nan])
def test_one_odd_value_makes_all_of_the_basis_nan(odd: float) -> None:
    vectors = normal(3, 40)
    vectors[2, 7] = odd
    assert orthonormal(vectors).isnan().all()


def test_scaling_rounds_nothing() -> None:
    vectors = torch.cat([normal(2, 30) * 1e20, torch.zeros(1, 30)])
    scaled = unit_scaled(vectors)
    assert ((scaled[:2].abs().amax(dim=1) >= 1) & (scaled[:2].abs().amax(dim=1) < 2)).all()
    ratio = vectors[:2] / scaled[:2]
    assert (ratio == ratio[:, :1]).all()
    assert not scaled[2].any()


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (300, 500), (3, 100_000)])
def test_products_in_groups_of_rows_are_those_of_the_whole(rows: int, columns: int) -> None:
    left, right = normal(3, rows, seed=1), normal(3, columns, seed=2)
    total = torch.zeros(rows, columns)
    for group in row_groups(rows, columns):
        add_outer_products(total[group], left[:, group], right)
    by_hand = left[0].unsqueeze(1) * right[0]
    for index in (1, 2):
        by_hand = by_hand + left[index].unsqueeze(1) * right[index]
    assert torch.equal(total, by_hand)


def test_starting_factors_depend_on_nothing_but_the_shape() -> None:
    one, other = (start_factors(4, 100, torch.device("cpu")) for _ in range(2))
    assert torch.equal(one, other)
    assert one.abs().max() < 0.5
    assert orthonormal(one).norm(dim=1).min() > 0.99  # no vector depends on the others


@pytest.mark.parametrize("shape", [(1, 1), (4, 2), (3, 1001), (5, 4096)])
def test_compiled_loops_do_what_plain_torch_does_to_the_bit(shape: tuple[int, int]) -> None:
    vectors = normal(*shape)
    vectors[-1] = vectors[0] * 2  # which leaves nothing of the last one
    scaled = unit_scaled(vectors)
    assert torch.equal(orthonormal(vectors), factors._orthonormalized(scaled))
    left, right = normal(shape[0], 37, seed=1), normal(*shape, seed=2)
    total = normal(37, shape[1], seed=3)
    expected = total.clone()
    factors._add_products(expected, left, right)
    add_outer_products(total, left, right)
    assert torch.equal(total, expected)
