"""What DDP's hook averages of a layer, piece by piece: parameters, or factors of matrices."""

from __future__ import annotations

from collections.abc import Iterable

from thinwire.formats import WireFormat, parse_format
from thinwire.planner.payload import Piece, even_pieces
from thinwire.planner.workload import Parameter
from thinwire.rules import FormatRule

__all__ = ["averaged_pieces"]

FP32 = parse_format("fp32")


def averaged_pieces(
    parameters: Iterable[tuple[str, Parameter, bool]], rule: FormatRule, world_size: int
) -> tuple[list[Piece], list[Piece]]:
    """The pieces of a layer's two averages.

    Args:
        parameters: names, sizes, and whether each travels exactly.
        rule: the formats of gradients.
        world_size: ranks that average.

    Returns:
        What is averaged first: whatever is no matrix, and the left factors of matrices; and their
        right factors, which are averaged after that. The latter are none but for ``lowrank``.
    """

    def piece(numel: int, fmt: WireFormat) -> Piece:
        return Piece(numel, even_pieces(numel, world_size, fmt.block or 1), fmt)

    first, second = [], []
    for name, parameter, is_exact in parameters:
        fmt = FP32 if is_exact else rule.format_of(name)
        factors = fmt.factors_of(parameter.shape)
        if factors is not None:
            first.append(piece(factors.num_factors * factors.rows, FP32))
            second.append(piece(factors.num_factors * factors.columns, FP32))
        else:
            first.append(piece(parameter.numel, FP32 if fmt.family == "lowrank" else fmt))
    return first, second
