"""What is timed of storage: a host's disk, and copies between a device and its host's memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import BinaryIO

import torch

from thinwire.train.calibration.clock import Case

__all__ = ["DISK_BYTES", "HOST_COPY_BYTES", "disk_cases", "host_copy_cases"]

# large enough that starting counts for little, small enough for any disk
DISK_BYTES = 32 << 20
HOST_COPY_BYTES = 64 << 20


def disk_cases(file: BinaryIO) -> Iterator[Case]:
    """Write a file to the disk and read it from there; all ranks of a host at once.

    The kernel keeps what was written in memory. So a write ends when the disk has it, and a read
    begins by dropping what is kept.

    Args:
        file: on the disk, unbuffered; every rank has one of its own.
    """
    content = os.urandom(DISK_BYTES)  # a disk that compresses gains nothing by it

    def write() -> None:
        file.seek(0)
        file.write(content)
        os.fsync(file.fileno())

    def read() -> None:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        while file.read(1 << 20):
            pass

    for name, action in (("write", write), ("read", read)):
        yield Case(figure="disk", case=name, size=DISK_BYTES, action=action, waits=True)


def host_copy_cases(device: torch.device) -> Iterator[Case]:
    """Copies from pinned host memory to the device and back; none where the host is the device."""
    if device.type == "cpu":
        return
    on_host = torch.empty(HOST_COPY_BYTES, dtype=torch.uint8).pin_memory()
    on_device = torch.empty(HOST_COPY_BYTES, dtype=torch.uint8, device=device)
    ways: dict[str, Callable[[], object]] = {
        "up": lambda: on_device.copy_(on_host, non_blocking=True),
        "down": lambda: on_host.copy_(on_device, non_blocking=True),
    }
    for name, action in ways.items():
        yield Case(figure="host copy", case=name, size=HOST_COPY_BYTES, action=action)
