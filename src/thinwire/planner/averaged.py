"""What DDP's hook averages of a layer, piece by piece: parameters, or factors of matrices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from thinwire.formats import WireFormat, parse_format
from thinwire.planner.call import FactorWork
from thinwire.planner.payload import Piece, even_pieces
from thinwire.planner.workload import Parameter
from thinwire.rules import FormatRule

__all__ = ["Averaged"]

FP32 = parse_format("fp32")


@dataclass(slots=True)
class Averaged:
    """The pieces of a layer's averages.

    Attributes:
        first: what is averaged first: whatever is no matrix, and the left factors of matrices.
        second: their right factors, averaged after that; none but for ``lowrank``.
        factored: the matrices.
    """

    first: list[Piece] = field(default_factory=list)
    second: list[Piece] = field(default_factory=list)
    factored: list[FactorWork] = field(default_factory=list)

    @classmethod
    def of(
        cls, parameters: Iterable[tuple[str, Parameter, bool]], rule: FormatRule, world_size: int
    ) -> Averaged:
        """Those of one layer.

        Args:
            parameters: names, sizes, and whether each travels exactly.
            rule: the formats of gradients.
            world_size: ranks that average.
        """

        def piece(numel: int, fmt: WireFormat) -> Piece:
            return Piece(numel, even_pieces(numel, world_size, fmt.block or 1), fmt)

        found = cls()
        for name, parameter, is_exact in parameters:
            fmt = FP32 if is_exact else rule.format_of(name)
            factors = fmt.factors_of(parameter.shape)
            if factors is None:
                exact = FP32 if fmt.family == "lowrank" else fmt
                found.first.append(piece(parameter.numel, exact))
                continue
            count, rows, columns = factors.num_factors, factors.rows, factors.columns
            found.first.append(piece(count * rows, FP32))
            found.second.append(piece(count * columns, FP32))
            found.factored.append(FactorWork(rows, columns, count))
        return found
