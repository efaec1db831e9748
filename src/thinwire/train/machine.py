"""What a measurement was made with: versions and processor, for the page's last section."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

__all__ = ["describe_machine"]


def describe_machine() -> dict[str, str]:
    """Names and values for people, in order. Imports none of the packages it names."""
    return {
        "thinwire": importlib.metadata.version("thinwire"),
        "torch": importlib.metadata.version("torch"),
        "numba": importlib.metadata.version("numba"),
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": f"{_processor()}, {len(os.sched_getaffinity(0))} cores usable",
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
