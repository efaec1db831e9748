"""How the messages of one collective follow each other, as calls of one rank."""

from __future__ import annotations

from thinwire.planner.call import Call, CodecWork, Sent
from thinwire.planner.group import Group
from thinwire.planner.payload import Payloads

__all__ = ["exchange", "ring", "rounds", "spread"]


def ring(
    name: str,
    group: Group,
    rank: int,
    unit_bytes: float,
    *,
    passes: int = 1,
    payload_bytes: float = 0.0,
    work: tuple[CodecWork, ...] = (),
    copied: float = 0.0,
) -> Call:
    """Every rank sends ``passes`` * (W - 1) units to its successor, one after another.

    Args:
        name: as in the ledger.
        group: of W ranks.
        rank: whose ledger it is, within the group.
        unit_bytes: of one message.
        passes: of a unit round the ring.
        payload_bytes: that a rank holds during the call.
        work: for the codecs of one rank.
        copied: elements copied between flat buffers and parameters.
    """
    sent_bytes = passes * (group.size - 1) * unit_bytes
    leaves = group.is_across and (rank + 1) % group.per_host == 0
    return Call(
        name=name,
        algorithm="ring",
        group=group,
        sent=Sent(0, sent_bytes) if leaves else Sent(sent_bytes, 0),
        egress_bytes=sent_bytes if group.is_across else 0.0,
        inner_bytes=sent_bytes if group.per_host > 1 else 0.0,
        message_bytes=unit_bytes,
        messages=passes * (group.size - 1),
        payload_bytes=payload_bytes,
        work=work,
        copied_elements=copied,
    )


def rounds(
    name: str,
    group: Group,
    *,
    sent_bytes: float,
    message_bytes: float,
    payload_bytes: float,
    work: tuple[CodecWork, ...] = (),
    copied: float = 0.0,
) -> Call:
    """A payload to each of the other ranks of a host, or of the other hosts with the own place.

    Args:
        name: as in the ledger.
        group: ``within`` or ``across`` of the data-parallel group.
        sent_bytes: by this rank to all others.
        message_bytes: of the longest payload.
        payload_bytes: that a rank holds during the call.
        work: for the codecs of one rank.
        copied: elements copied between flat buffers and parameters.
    """
    return Call(
        name=name,
        algorithm="rounds",
        group=group,
        sent=Sent(0, sent_bytes) if group.is_across else Sent(sent_bytes, 0),
        egress_bytes=sent_bytes if group.is_across else 0.0,
        inner_bytes=0.0 if group.is_across else sent_bytes,
        message_bytes=message_bytes,
        messages=group.size - 1,
        payload_bytes=payload_bytes,
        work=work,
        copied_elements=copied,
    )


def spread(name: str, group: Group, size_bytes: int, *, payload_bytes: float) -> Call:
    """The same payload to each of the others, in rounds."""
    sent_bytes = (group.size - 1) * size_bytes
    return rounds(
        name, group, sent_bytes=sent_bytes, message_bytes=size_bytes, payload_bytes=payload_bytes
    )


def exchange(
    group: Group, rank: int, payloads: Payloads, work: tuple[CodecWork, ...], *, copied: float
) -> Call:
    """An all-to-all of the whole group: every rank sends every other rank that rank's slot.

    Args:
        group: of W ranks.
        rank: whose ledger it is, within the group.
        payloads: of the slots.
        work: for the codecs of one rank.
        copied: elements copied between flat buffers and parameters.
    """
    host = group.host_ranks(rank)
    on_host = payloads.between(host.start, host.stop)
    own_bytes = payloads.between(rank, rank + 1)
    across_bytes = payloads.total_bytes - on_host
    return Call(
        name="reduce_scatter",
        algorithm="rounds",
        group=group,
        sent=Sent(on_host - own_bytes, across_bytes),
        egress_bytes=group.per_host * across_bytes,
        inner_bytes=on_host - own_bytes,
        message_bytes=payloads.slot_bytes,
        messages=group.size - 1,
        payload_bytes=payloads.total_bytes + group.size * own_bytes,
        work=work,
        copied_elements=copied,
    )
