"""Formats chosen layer by layer from what each would lose, within a budget of bytes or of error.

    every so many steps:
        for each parameter:  observe(name, values)      what would every candidate lose?
        losses = sum over ranks of losses()             so that all ranks decide on the same numbers
        choose(losses)                                  until the next time
    in between:              format_of(name)

Layers differ: at the same number of bits one loses a hundred times more than another. Bits moved
from those that hardly notice to those that do cost nothing on the wire (L-GreCo, Markov et al.,
arXiv 2210.17357).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from thinwire.errors import ConfigError, StateError
from thinwire.formats import WireFormat
from thinwire.wire.budget import Budget
from thinwire.wire.key import Key
from thinwire.wire.registry import codec_for

__all__ = ["AdaptiveFormats", "squared_error"]


def squared_error(values: Tensor, fmt: WireFormat, key: Key) -> float:
    """What a format loses of a tensor: the sum of squared errors, in float64.

    Args:
        values: 1-D and contiguous; float32, bfloat16 or float16.
        fmt: any format that needs no matrix.
        key: names the random numbers of a format that draws some.
    """
    codec = codec_for(fmt, values.device)
    payload = torch.empty(fmt.wire_bytes(values.numel()), dtype=torch.uint8, device=values.device)
    codec.encode_into(values, payload, key)
    decoded = torch.empty(values.shape, dtype=torch.float32, device=values.device)
    codec.decode_into(payload, decoded)
    return _square(decoded.sub_(values))


def _square(values: Tensor) -> float:
    """The sum of squares. In float32 those of 1e20 would be infinite, and those of 1e-25 zero."""
    return float(values.double().square_().sum())


class AdaptiveFormats:
    """The format of every parameter, chosen among candidates within a budget.

    Until the first choice, every parameter travels in the same candidate, which the budget picks.
    The choice depends on the summed losses alone, so that every rank makes the same one.

    Args:
        parts: the numbers of elements of the parts in which every parameter travels, by name.
        candidates: formats to choose from; at least two, which differ in bytes.
        budget: what the choice keeps to.

    Raises:
        ConfigError: there is nothing to choose from, or no candidate keeps to the budget.
    """

    def __init__(
        self,
        parts: Mapping[str, Sequence[int]],
        candidates: Sequence[WireFormat],
        budget: Budget,
    ) -> None:
        if len(set(candidates)) != len(candidates) or len(candidates) < 2:
            raise ConfigError(
                f"adaptive bits choose among formats, and were given "
                f"{', '.join(map(str, candidates)) or 'none'}: offer for example int2, int4, int8"
            )
        self.candidates = tuple(candidates)
        self.numel = sum(sum(numels) for numels in parts.values())
        self._budget = budget
        self._rows = {name: row for row, name in enumerate(sorted(parts))}
        self._bytes = [
            [sum(map(fmt.wire_bytes, parts[name])) for fmt in self.candidates]
            for name in self._rows
        ]
        # the last column is the sum of squares of what was observed
        self._losses = torch.zeros(len(self._rows), len(self.candidates) + 1, dtype=torch.float64)
        self._choices = [self._first_choice()] * len(self._rows)

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters, in the order of the rows of `losses`."""
        return tuple(self._rows)

    @property
    def wire_bytes(self) -> int:
        """Bytes that all parameters take in their present formats."""
        pairs = zip(self._bytes, self._choices, strict=True)
        return sum(sizes[choice] for sizes, choice in pairs)

    def format_of(self, name: str) -> WireFormat:
        """The present format of a parameter."""
        return self.candidates[self._choices[self._row(name)]]

    def observe(self, name: str, values: Tensor, key: Key) -> None:
        """Add up what every candidate would lose of ``values``, part of a parameter or all of it.

        A part that is not finite says nothing about formats and is left out.
        """
        row = self._row(name)
        errors = [squared_error(values, fmt, key) for fmt in self.candidates]
        losses = torch.tensor([*errors, _square(values)], dtype=torch.float64)
        if losses.isfinite().all():
            self._losses[row] += losses

    def losses(self) -> Tensor:
        """What was observed since the last choice: float64, [parameters, candidates + 1].

        Squared errors, and in the last column the squares of the values themselves. Sum it over all
        ranks, then `choose`.
        """
        return self._losses.clone()

    def choose(self, losses: Tensor) -> None:
        """Choose anew from losses summed over ranks, and begin to observe afresh.

        A parameter of which nothing is known, for all that was observed of it was zero or not
        finite, keeps its format; the others share what that leaves of the budget.

        Raises:
            StateError: ``losses`` has another shape than what `losses` returned.
        """
        if losses.shape != self._losses.shape:
            raise StateError(
                f"losses have shape {tuple(losses.shape)}, and {tuple(self._losses.shape)} are "
                "needed: pass the sum over ranks of what losses() returned"
            )
        known = (losses.isfinite().all(dim=1) & (losses[:, -1] > 0)).tolist()
        if not self._fits():  # formats that were taken over, chosen within a larger budget
            self._choices = [self._first_choice()] * len(self._rows)
        rows = zip(known, losses[:, :-1].tolist(), self._bytes, self._choices, strict=True)
        # a row of which nothing is known has one option, and no loss that would be compared
        options = [
            (errors, sizes) if is_known else ([0.0], [sizes[choice]])
            for is_known, errors, sizes, choice in rows
        ]
        errors, sizes = [row[0] for row in options], [row[1] for row in options]
        square = float(losses[known, -1].sum())
        chosen = self._budget.choose(errors, sizes, self.numel, square)
        pairs = zip(known, chosen, self._choices, strict=True)
        self._choices = [new if is_known else old for is_known, new, old in pairs]
        self.forget()

    def forget(self) -> None:
        """Begin to observe afresh, without a choice."""
        self._losses.zero_()

    def take(self, formats: Sequence[WireFormat]) -> None:
        """Continue with formats that were chosen before.

        Args:
            formats: candidates, in the order of `names`.

        Raises:
            StateError: there is not one for every parameter, or one is no candidate.
        """
        if len(formats) != len(self._rows) or not set(formats) <= set(self.candidates):
            raise StateError(
                f"{len(self._rows)} formats among {', '.join(map(str, self.candidates))} are "
                f"needed, not {', '.join(map(str, formats))}: take those of the same parameters"
            )
        self._choices = [self.candidates.index(fmt) for fmt in formats]

    def _first_choice(self) -> int:
        return self._budget.first_choice(self._bytes, self.numel)

    def _fits(self) -> bool:
        return self.wire_bytes <= self._budget.limit_bytes(self.numel)

    def _row(self, name: str) -> int:
        row = self._rows.get(name)
        if row is None:
            raise StateError(
                f"parameter {name!r} is not among the {len(self._rows)} whose formats adapt: "
                "name it when the formats are made"
            )
        return row
