"""Gradients as products of two thin matrices: PowerSGD (arXiv 1905.13727, algorithms 1 and 2).

The factors of the average can be averaged themselves, as both follow from the gradients by linear
steps: the result is what one rank would get that had the mean of all gradients, and the bytes that
a rank sends do not grow with the number of ranks.

Note: equal bits. Every rank makes the left factor orthonormal and multiplies the factors by itself.
Both are done in a fixed order (:mod:`thinwire.wire.factors`), so ranks on different processors
end with the same bits all the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.comm import collectives
from thinwire.comm.collectives import Traffic
from thinwire.comm.layout import Piece, ShardLayout
from thinwire.comm.sender import Job
from thinwire.comm.topology import Peers
from thinwire.errors import StateError
from thinwire.layouts import LowRankLayout
from thinwire.sharding.compression import Compression
from thinwire.sharding.sliced import SlicedAverage, gradient_format
from thinwire.sharding.slots import collect, deal_out, even_piece
from thinwire.wire.factors import (
    add_outer_products,
    orthonormal,
    row_groups,
    start_factors,
    unit_scaled,
)
from thinwire.wire.key import Key

__all__ = ["LowRankAverage", "RightFactors"]

PART = "matrix"  # names a matrix's residual


class RightFactors:
    """The right factor of every matrix, with which its next step begins (warm start).

    Equal on all ranks. Memory: 4 bytes times factors times columns for every matrix.
    """

    def __init__(self) -> None:
        self._factors: dict[str, Tensor] = {}
        self._committed: dict[str, Tensor] = {}

    def start(self, name: str, num_factors: int, matrix: Tensor) -> Tensor:
        """What a matrix's step begins with: float32, [factors, columns].

        Raises:
            StateError: the matrix or the rank is not that of the factor that was kept.
        """
        columns = matrix.shape[1]
        kept = self._factors.get(name)
        if kept is None:
            return start_factors(num_factors, columns, matrix.device)
        if kept.shape != (num_factors, columns):
            raise StateError(
                f"parameter {name} needs {num_factors} right factors of {columns} elements, but "
                f"those kept are {tuple(kept.shape)}: the parameter was resized, or the state is "
                "that of another rank of lowrank=K; leave the state out to start anew"
            )
        return kept

    def keep(self, name: str, right: Tensor) -> None:
        """Remember the factor of a finished step, unless it is not finite.

        Scaled, for what counts is the directions. A factor of zeros would stay at zero for ever:
        it makes way for the one that the first step began with.
        """
        if not right.isfinite().all():
            return
        fresh = start_factors(len(right), right.shape[1], right.device)
        is_zero = (right == 0).all(dim=1, keepdim=True)
        self._factors[name] = torch.where(is_zero, fresh, unit_scaled(right))

    def commit(self) -> None:
        """The step under way was taken: its factors stay."""
        self._committed = dict(self._factors)

    def undo(self) -> None:
        """The step under way is not taken: start again with the factors of the one before."""
        self._factors = dict(self._committed)

    def state(self) -> dict[str, Tensor]:
        """All factors by parameter; the tensors themselves, not copies."""
        return dict(self._factors)

    def check(self, state: Mapping[str, Tensor]) -> None:
        """Raise unless a state is one of factors.

        Raises:
            StateError: an entry is no matrix of float32.
        """
        for name, factor in state.items():
            if factor.dim() != 2 or factor.dtype != torch.float32:
                raise StateError(
                    f"{name!r} ({factor.dtype}, shape {tuple(factor.shape)}) is no right factor: "
                    "pass what thinwire.compression_state returned"
                )

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what :meth:`state` returned.

        Raises:
            StateError: see :meth:`check`.
        """
        self.check(state)
        self._factors = {name: factor.clone() for name, factor in state.items()}
        self.commit()


class LowRankAverage:
    """Matrices travel as factors, everything else as in :class:`SlicedAverage`.

    For every matrix M (a gradient of more dimensions is the matrix of its first one and the rest)
    with right factor Q, kept from the step before:

    1. M = gradient + residual.
    2. P = M Q; all-reduce P in fp32, AVG, and with it what is no matrix.
    3. P = orthonormal vectors that span the same space.
    4. Q = M' P, of this rank; residual = M - P Q'.
    5. All-reduce Q in fp32, AVG.
    6. gradient = P Q', the same bits on every rank; keep Q.

    A parameter of one dimension, one that travels exactly, and one whose factors would have as many
    elements as itself is no matrix. Without ``feedback`` there is no residual.

    Bytes sent per rank = those of two all-reduces of factors * rows and factors * columns fp32
    numbers for every matrix, and of one of the rest.

    Args:
        compression: what all sockets of the model share.
        peers: the ranks that take part.
        rights: the right factors to begin with.
    """

    def __init__(self, compression: Compression, peers: Peers, rights: RightFactors) -> None:
        self._compression = compression
        self._peers = peers
        self._rights = rights
        self._sliced = SlicedAverage(compression, peers)
        self._formats = compression.grad_formats
        self._plans: dict[tuple[str, ...], _Plan] = {}

    def job(self, gradients: Mapping[str, Tensor], key: Key) -> Job:
        """The average as a job."""
        plan = self._plan(gradients)
        if not plan.matrices:
            return self._sliced.job(gradients, key)
        return self._average(gradients, plan, key)

    def _plan(self, gradients: Mapping[str, Tensor]) -> _Plan:
        """What is factored of a set of gradients; made once, until the formats change."""
        compression, names = self._compression, tuple(gradients)
        if self._formats is not compression.grad_formats:
            self._formats = compression.grad_formats
            self._plans.clear()
        if names not in self._plans:
            self._plans[names] = _make_plan(gradients, compression, self._peers.size)
        return self._plans[names]

    def _average(self, gradients: Mapping[str, Tensor], plan: _Plan, key: Key) -> Job:
        matrices = {name: self._carried(name, gradients[name], key.step) for name in plan.matrices}
        lefts = {
            name: self._rights.start(name, plan.matrices[name].num_factors, matrix) @ matrix.T
            for name, matrix in matrices.items()
        }
        others = [gradient for name, gradient in gradients.items() if name not in matrices]
        first = self._traffic(plan.first, plan.whole)
        for transfer in _all_reduce([*lefts.values(), *others], first, key.fold("left")):
            yield dataclasses.replace(transfer, is_last=False)
        rights = {}
        for name, matrix in matrices.items():
            lefts[name] = orthonormal(lefts[name])
            rights[name] = lefts[name] @ matrix
            self._renew(name, matrix, lefts[name], rights[name])
        matrices.clear()
        second = self._traffic(plan.second, ShardLayout((), self._peers.size))
        yield from _all_reduce(list(rights.values()), second, key.fold("right"))
        for name, right in rights.items():
            _multiply(lefts[name], right, gradients[name])
            self._rights.keep(name, right)

    def _carried(self, name: str, gradient: Tensor, step: int) -> Tensor:
        """The gradient and its residual, as a matrix of its own: [rows, columns], fp32."""
        # a copy in any case: a bucket's views begin at any address, on which the order of
        # summation in a matrix product may depend
        carried = gradient.detach().to(torch.float32, copy=True).view(len(gradient), -1)
        self._compression.feedback.add_residual(name, PART, carried.view(-1), step)
        return carried

    def _renew(self, name: str, carried: Tensor, left: Tensor, right: Tensor) -> None:
        """Keep what the factors of this rank leave out; overwrites ``carried``."""
        add_outer_products(carried, -left, right)
        self._compression.feedback.keep_lost(name, PART, carried.view(-1))

    def _traffic(self, layout: ShardLayout, stands_for: ShardLayout) -> Traffic:
        ledger, feedback = self._compression.ledger, self._compression.feedback
        return Traffic(layout, self._peers, ledger, feedback, stands_for)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """How a set of gradients travels.

    Attributes:
        matrices: those that are factored, and the sizes of their factors.
        first: the left factors, then the gradients that are no matrices.
        second: the right factors.
        whole: all of the gradients, for the ledger.
    """

    matrices: Mapping[str, LowRankLayout]
    first: ShardLayout
    second: ShardLayout
    whole: ShardLayout


def _make_plan(gradients: Mapping[str, Tensor], compression: Compression, world_size: int) -> _Plan:
    matrices: dict[str, LowRankLayout] = {}
    lefts: list[Piece] = []
    rights: list[Piece] = []
    others: list[Piece] = []
    whole: list[Piece] = []
    for name, gradient in gradients.items():
        fmt = gradient_format(compression, name, gradient.shape)
        piece = even_piece(name, gradient.shape, gradient.dtype, fmt, world_size)
        whole.append(piece)
        layout = None if fmt is None else fmt.factors_of(gradient.shape)
        if layout is None:
            others.append(piece)
            continue
        matrices[name] = layout
        for side, numel in ((lefts, layout.rows), (rights, layout.columns)):
            shape = torch.Size((layout.num_factors, numel))
            side.append(even_piece(name, shape, torch.float32, None, world_size))
    return _Plan(
        matrices=matrices,
        first=ShardLayout([*lefts, *others], world_size),
        second=ShardLayout(rights, world_size),
        whole=ShardLayout(whole, world_size),
    )


def _all_reduce(tensors: list[Tensor], traffic: Traffic, key: Key) -> Job:
    """Average tensors in place; the buffer that travels is fp32, as the first of them."""
    slots = deal_out(tensors, traffic.layout)
    yield from collectives.all_reduce(slots.view(-1), traffic, key, dist.ReduceOp.AVG)
    collect(slots, tensors, traffic.layout)


def _multiply(left: Tensor, right: Tensor, gradient: Tensor) -> None:
    """Write the product of the factors into a gradient."""
    matrix = gradient.view(len(gradient), -1)
    for rows in row_groups(*matrix.shape):
        total = torch.zeros_like(matrix[rows], dtype=torch.float32)
        add_outer_products(total, left[:, rows].contiguous(), right)
        matrix[rows].copy_(total)
