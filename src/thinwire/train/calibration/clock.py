"""Times an action on all ranks at once, as they run at once in a training step.

note [crowding]
Ranks that share processors take turns, and over a few hundredths of a second the scheduler deals
the turns out unevenly. What computes on CPUs is therefore timed by the processor time that it took
on the average of all ranks while all ran, times the number of ranks for each processor.
"""

from __future__ import annotations

import hashlib
import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist

from thinwire.comm.topology import gather_integers

__all__ = ["Case", "Clock"]

MOST_CALLS = 2000
# A measurement is the median of as many: one that met another program does not count.
REPEATS = 3
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(slots=True, kw_only=True)
class Case:
    """Something to time.

    Attributes:
        figure: see :class:`thinwire.train.calibration.sample.Sample`.
        case: the same.
        size: the same.
        action: what is timed.
        waits: whether the action waits for others: for peers, or for a disk.
        calls: in a row, the same number on every rank; found when first timed.
    """

    figure: str
    size: float
    action: Callable[[], object]
    case: str = ""
    waits: bool = False
    calls: int = field(default=0)


@dataclass(frozen=True, slots=True)
class Clock:
    """Times cases.

    Attributes:
        device: where actions compute.
        shortest_s: that one measurement lasts at least.
        crowding: ranks of this machine for each of its processors; at least 1.
    """

    device: torch.device
    shortest_s: float
    crowding: float

    @classmethod
    def of_this_machine(cls, device: torch.device, shortest_s: float) -> Clock:
        """A clock that knows how many ranks share the machine. A collective call."""
        machine = int.from_bytes(hashlib.blake2b(_machine(), digest_size=7).digest(), "big")
        ranks = gather_integers(machine).count(machine)
        return cls(device, shortest_s, max(1.0, ranks / len(os.sched_getaffinity(0))))

    def call_s(self, case: Case) -> float:
        """Seconds of one call while all ranks make it. A collective call.

        Args:
            case: its action may itself be a collective.
        """
        if case.calls == 0:
            case.action()  # compiles, connects, allocates
            # a clock that did not advance says that a call takes next to nothing
            once_s = max(self._mean_s(self._run_s(case, 1)), self.shortest_s / MOST_CALLS)
            case.calls = max(1, math.ceil(self.shortest_s / once_s))
        run_s = statistics.median(self._run_s(case, case.calls) for _ in range(REPEATS))
        if self._is_by_processor(case):
            run_s = self.crowding * self._mean_s(run_s)
        return run_s / case.calls

    def _is_by_processor(self, case: Case) -> bool:
        return self.device.type == "cpu" and not case.waits

    def _run_s(self, case: Case, calls: int) -> float:
        read = time.process_time if self._is_by_processor(case) else self._now_s
        dist.barrier()
        start_s = read()
        for _ in range(calls):
            case.action()
        return read() - start_s

    def _mean_s(self, seconds: float) -> float:
        """The mean over all ranks, the same number on each."""
        total = torch.tensor([seconds], dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return total.item() / dist.get_world_size()

    def _now_s(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def _machine() -> bytes:
    """What all hosts of the lab have in common, and no two machines."""
    return BOOT_ID.read_bytes()
