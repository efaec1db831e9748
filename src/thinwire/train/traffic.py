"""What a training sends, counted twice: by the ledger, and by the host's network interface."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import nn

import thinwire as tw
from thinwire.lab import read_interface
from thinwire.sharding import ledger_of

__all__ = ["Traffic", "TrafficMeter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What was sent between the start and the stop of a meter.

    Attributes:
        collectives: the ledger's entries.
        nic_bytes: sent by this rank's host, headers included; ``None`` where it is not counted.
    """

    collectives: tuple[dict[str, Any], ...]
    nic_bytes: int | None


class TrafficMeter:
    """Counts between two barriers, so that no rank's bytes fall on the wrong side.

    The interface is the one that the lab gave to gloo. Over loopback nothing is counted: that
    interface carries every other program's traffic too.

    Args:
        model: from ``tw.shard``; its ledger is reset at the start.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        name = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
        self._interface = None if name == "lo" or dist.get_backend() != "gloo" else name
        self._nic_before: int | None = None

    def start(self) -> None:
        """Begin to count. A collective call."""
        dist.barrier()
        ledger_of(self._model).reset()
        self._nic_before = self._nic_bytes()

    def stop(self) -> Traffic:
        """What was sent since the start. A collective call."""
        # the ledger first: it has all of this rank's own calls, and the barrier is not its business
        collectives = tuple(dict(entry) for entry in tw.ledger(self._model)["collectives"])
        dist.barrier()
        after = self._nic_bytes()
        if self._nic_before is None or after is None:
            return Traffic(collectives=collectives, nic_bytes=None)
        return Traffic(collectives=collectives, nic_bytes=after - self._nic_before)

    def _nic_bytes(self) -> int | None:
        return None if self._interface is None else read_interface(self._interface).sent_bytes
