"""One call of one collective: what it sends, what it encodes, and how its messages follow.

Bytes are those of the ledger, to the byte. The rank that sends most is always the last one: its
own slot is the shortest, so that an all-to-all sends it least and has it send most, and in a ring
its successor sits on another host.
"""

from __future__ import annotations

from dataclasses import dataclass

from thinwire.formats import WireFormat
from thinwire.planner.group import Group
from thinwire.planner.payload import Payloads

__all__ = ["Call", "CodecWork", "Sent", "exchange", "ring"]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a collective, the same on every rank.

    Attributes:
        name: as in the ledger: ``"all_gather"``, ``"reduce_scatter"``, ``"all_reduce"``.
        algorithm: ``"ring"`` or ``"exchange"``.
        group: who takes part.
        sent: by the rank that sends most.
        egress_bytes: that leave one host over its link, for this group.
        inner_bytes: that the busiest rank sends within its host.
        message_bytes: of one message.
        messages: that a rank sends; one after another in a ring, all at once in an exchange.
        payload_bytes: that a rank holds during the call, sent and received.
        work: for the codecs of one rank.
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
    copied_elements: float = 0.0


def ring(
    name: str,
    group: Group,
    unit_bytes: float,
    *,
    passes: int = 1,
    payload_bytes: float = 0.0,
    work: tuple[CodecWork, ...] = (),
    copied_elements: float = 0.0,
) -> Call:
    """A ring: every rank sends ``passes`` * (W - 1) units to its successor, one after another.

    Args:
        name: as in the ledger.
        group: who takes part.
        unit_bytes: of one message: a slot.
        passes: how often all units go round: 1 for an all-gather, 2 for an all-reduce.
        payload_bytes: that a rank holds during the call.
        work: for the codecs of one rank.
        copied_elements: elements copied between flat buffers and parameters.
    """
    sent_bytes = passes * (group.size - 1) * unit_bytes
    return Call(
        name=name,
        algorithm="ring",
        group=group,
        sent=Sent(0, sent_bytes) if group.is_across else Sent(sent_bytes, 0),
        egress_bytes=sent_bytes if group.is_across else 0.0,
        inner_bytes=sent_bytes if group.per_host > 1 else 0.0,
        message_bytes=unit_bytes,
        messages=passes * (group.size - 1),
        payload_bytes=payload_bytes,
        work=work,
        copied_elements=copied_elements,
    )


def exchange(
    name: str,
    group: Group,
    payloads: Payloads,
    *,
    work: tuple[CodecWork, ...] = (),
    copied_elements: float = 0.0,
) -> Call:
    """An all-to-all: every rank sends every other rank that rank's slot.

    Args:
        name: as in the ledger.
        group: who takes part.
        payloads: bytes of every rank's slot.
        work: for the codecs of one rank.
        copied_elements: elements copied between flat buffers and parameters.
    """
    sent = exchange_sent(group, payloads, group.size - 1)
    return Call(
        name=name,
        algorithm="exchange",
        group=group,
        sent=sent,
        egress_bytes=group.per_host * sent.across_bytes,
        inner_bytes=sent.within_bytes,
        message_bytes=payloads.slot_bytes,
        messages=group.size - 1,
        payload_bytes=payloads.total_bytes + group.size * payloads.slot_bytes,
        work=work,
        copied_elements=copied_elements,
    )


def exchange_sent(group: Group, payloads: Payloads, rank: int) -> Sent:
    """What one rank sends in an all-to-all."""
    host = group.host_ranks(rank)
    on_host = payloads.between(host.start, host.stop)
    return Sent(
        within_bytes=on_host - payloads.between(rank, rank + 1),
        across_bytes=payloads.total_bytes - on_host,
    )
