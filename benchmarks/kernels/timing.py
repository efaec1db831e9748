"""How actions are timed here: beside a copy, on one core, in processor time.

This file imports torch alone, because the rivals' environment has no thinwire.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["Actions", "peak_extra_bytes", "ratios"]

Actions = dict[str, Callable[[], object]]

_STATUS, _CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def seconds(action: Callable[[], object]) -> float:
    """Processor time of this thread: other programs on the machine stay out of it."""
    start = time.thread_time()
    action()
    return time.thread_time() - start


def ratios(actions: Actions, copy: Callable[[], object], rounds: int) -> dict[str, float]:
    """For every action, the median of its time over that of a copy right before it.

    A machine's speed changes from second to second; the ratio of two neighbours hardly does.
    """
    found: dict[str, list[float]] = {name: [] for name in actions}
    for action in (copy, *actions.values()):
        action()  # compiles, and touches every page
    for _ in range(rounds):
        for name, action in actions.items():
            copy_s = seconds(copy)
            found[name].append(seconds(action) / copy_s)
    return {name: statistics.median(values) for name, values in found.items()}


def peak_extra_bytes(action: Callable[[], object]) -> int:
    """By how much the resident memory of the process grows while ``action`` runs (Linux)."""
    ctypes.CDLL(None).malloc_trim(0)
    _CLEAR_REFS.write_text("5")
    before = _high_water_mark_bytes()
    action()
    return _high_water_mark_bytes() - before


def _high_water_mark_bytes() -> int:
    lines = _STATUS.read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
