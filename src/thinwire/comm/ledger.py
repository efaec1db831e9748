"""The ledger: the bytes that this rank really sent, collective by collective.

A collective records what it hands to the backend as payload, per receiver, and what the same
collective would have sent with bf16 elements. Headers of the network below (TCP, IP, Ethernet)
are not in it; the network card's counter shows them on top.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypedDict

__all__ = ["BF16_BYTES", "CollectiveBytes", "Ledger", "LedgerReport"]

BF16_BYTES = 2


class CollectiveBytes(TypedDict):
    """What one kind of collective sent since the ledger was opened or reset."""

    name: str
    calls: int
    within_bytes: int
    across_bytes: int
    bf16_bytes: int
    formats: list[str]


class LedgerReport(TypedDict):
    """A ledger as plain data, ready for JSON.

    ``ratio`` is bf16 bytes per sent byte; ``chosen_formats`` are those in effect now, by parameter,
    where the recipe has them chosen from what gradients look like.
    """

    collectives: list[CollectiveBytes]
    within_bytes: int
    across_bytes: int
    sent_bytes: int
    bf16_bytes: int
    ratio: float | None
    chosen_formats: dict[str, str]


@dataclass(slots=True)
class _Entry:
    calls: int = 0
    within_bytes: int = 0
    across_bytes: int = 0
    bf16_bytes: int = 0
    formats: set[str] = field(default_factory=set)


class Ledger:
    """Counts sent bytes per collective, within and across hosts."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        # jobs of two lines and the main thread record side by side
        self._lock = threading.Lock()
        self._chosen_formats: dict[str, str] = {}

    def record(
        self,
        collective: str,
        *,
        within_bytes: int = 0,
        across_bytes: int = 0,
        bf16_bytes: int,
        formats: frozenset[str],
    ) -> None:
        """Add one call of a collective.

        Args:
            collective: its name, such as ``"all_gather"``.
            within_bytes: bytes sent to ranks on this host.
            across_bytes: bytes sent to ranks on other hosts.
            bf16_bytes: bytes that the uncompressed collective would send with bf16 elements.
            formats: the formats that its payload holds.
        """
        with self._lock:
            entry = self._entries.setdefault(collective, _Entry())
            entry.calls += 1
            entry.within_bytes += within_bytes
            entry.across_bytes += across_bytes
            entry.bf16_bytes += bf16_bytes
            entry.formats |= formats

    def enter_formats(self, chosen: Mapping[str, str]) -> None:
        """Enter the formats that were chosen for parameters, until others are."""
        self._chosen_formats = dict(chosen)

    def reset(self) -> None:
        """Forget all that was recorded; chosen formats stay, for they are in effect."""
        with self._lock:
            self._entries.clear()

    def report(self) -> LedgerReport:
        """All that was recorded since the ledger was opened or reset."""
        with self._lock:
            collectives = [
                CollectiveBytes(
                    name=name,
                    calls=entry.calls,
                    within_bytes=entry.within_bytes,
                    across_bytes=entry.across_bytes,
                    bf16_bytes=entry.bf16_bytes,
                    formats=sorted(entry.formats),
                )
                for name, entry in sorted(self._entries.items())
            ]
        within_bytes = sum(item["within_bytes"] for item in collectives)
        across_bytes = sum(item["across_bytes"] for item in collectives)
        bf16_bytes = sum(item["bf16_bytes"] for item in collectives)
        sent_bytes = within_bytes + across_bytes
        return LedgerReport(
            collectives=collectives,
            within_bytes=within_bytes,
            across_bytes=across_bytes,
            sent_bytes=sent_bytes,
            bf16_bytes=bf16_bytes,
            ratio=bf16_bytes / sent_bytes if sent_bytes else None,
            chosen_formats=dict(self._chosen_formats),
        )
