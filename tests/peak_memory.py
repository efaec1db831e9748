"""How much memory an action takes while it runs, whoever allocates it: torch, NumPy or Numba."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

__all__ = ["can_measure", "peak_growth_bytes"]

_STATUS, _CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_HIGH_WATER_MARK = "5"


def can_measure() -> bool:
    """Whether the system keeps a high-water mark that can be reset: Linux does."""
    try:
        _CLEAR_REFS.write_text(_RESET_HIGH_WATER_MARK)
    except OSError:
        return False
    return "VmHWM" in _STATUS.read_text()


def peak_growth_bytes(action: Callable[[], object]) -> int:
    """By how much the process's resident memory grows while ``action`` runs.

    Memory that was freed and kept by the allocator would hide growth: it is given back first.
    Memory that the action merely touches counts too, so touch its arguments before.
    """
    ctypes.CDLL(None).malloc_trim(0)
    _CLEAR_REFS.write_text(_RESET_HIGH_WATER_MARK)
    before = _high_water_mark_bytes()
    action()
    return _high_water_mark_bytes() - before


def _high_water_mark_bytes() -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("can_measure() was not asked")
