"""One call of one collective: what it sends, what it encodes, and how its messages follow.

    ring        every rank hands units on to its successor; each message waits for the one before
    rounds      every rank sends to one peer after another, and nobody to the same one at once

Bytes are those that the ledger of one rank counts, to the byte.
"""

from __future__ import annotations

from dataclasses import dataclass

from thinwire.formats import WireFormat
from thinwire.planner.group import Group

__all__ = ["Call", "CodecWork", "FactorWork", "Sent"]


@dataclass(frozen=True, slots=True)
class Sent:
    """Bytes that one rank hands to the backend.

    Attributes:
        within_bytes: for ranks on its host.
        across_bytes: for ranks on other hosts.
    """

    within_bytes: float = 0
    across_bytes: float = 0

    def __add__(self, other: Sent) -> Sent:
        return Sent(self.within_bytes + other.within_bytes, self.across_bytes + other.across_bytes)

    def times(self, factor: float) -> Sent:
        """The same ``factor`` times."""
        return Sent(self.within_bytes * factor, self.across_bytes * factor)

    @property
    def total_bytes(self) -> float:
        """For all ranks."""
        return self.within_bytes + self.across_bytes


@dataclass(frozen=True, slots=True)
class CodecWork:
    """Elements that pass through a codec.

    Attributes:
        verb: ``"encode"``, ``"decode"`` or ``"sum"``.
        format: of the payload.
        numel: elements encoded or decoded, of all payloads together.
    """

    verb: str
    format: WireFormat
    numel: float


@dataclass(frozen=True, slots=True)
class FactorWork:
    """A matrix that is factored, and put together again.

    Attributes:
        rows, columns: of the matrix.
        num_factors: to a side.
    """

    rows: int
    columns: int
    num_factors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a collective.

    Attributes:
        name: as in the ledger: ``"all_gather"``, ``"reduce_scatter"``, ``"all_reduce"``.
        algorithm: ``"ring"`` or ``"rounds"``.
        group: who takes part.
        sent: by the rank in question.
        egress_bytes: that leave one host over its link, for this group.
        inner_bytes: that a rank sends within its host.
        message_bytes: of one message.
        messages: that a rank sends one after another.
        payload_bytes: that a rank holds during the call, sent and received.
        work: for the codecs of one rank.
        factored: matrices that it factors.
        copied_elements: elements copied between flat buffers and parameters.
    """

    name: str
    algorithm: str
    group: Group
    sent: Sent
    egress_bytes: float
    inner_bytes: float
    message_bytes: float
    messages: int
    payload_bytes: float = 0.0
    work: tuple[CodecWork, ...] = ()
    factored: tuple[FactorWork, ...] = ()
    copied_elements: float = 0.0
