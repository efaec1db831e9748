"""A calibration by ranks that torchrun started: across the hosts that training will use.

    torchrun --nnodes 2 --nproc-per-node 4 ... -m thinwire calibrate --output hardware.toml

Every rank runs this program, all measure at once, and rank 0 judges and writes.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.distributed as dist

from thinwire.errors import ConfigError
from thinwire.lab import Layout
from thinwire.train.calibration.calibration import Calibration, CalibrationRequest, judge
from thinwire.train.calibration.measuring import CalibrationJob, measure
from thinwire.train.calibration.sample import Sample, slowest
from thinwire.train.rank_device import BACKENDS, rank_device

__all__ = ["calibrate_joined", "torchrun_layout"]


def torchrun_layout(environment: Mapping[str, str] = os.environ) -> Layout | None:
    """The hosts and ranks that torchrun started, or ``None`` outside of it.

    Raises:
        ConfigError: hosts have different numbers of ranks; all hosts of a calibration are alike.
    """
    if "TORCHELASTIC_RUN_ID" not in environment:
        return None
    world, per_host = int(environment["WORLD_SIZE"]), int(environment["LOCAL_WORLD_SIZE"])
    hosts = int(environment["GROUP_WORLD_SIZE"])
    if world != hosts * per_host:
        raise ConfigError(
            f"torchrun started {world} ranks on {hosts} hosts, {per_host} of them here: calibrate "
            "with as many ranks on every host"
        )
    return Layout(hosts=hosts, ranks_per_host=per_host)


def calibrate_joined(
    request: CalibrationRequest, *, tell: Callable[[str], None]
) -> Calibration | None:
    """Join the world that torchrun started and measure. A collective call.

    Args:
        request: what to measure; its layout is that of :func:`torchrun_layout`.
        tell: told in words what happens, on rank 0 only.

    Returns:
        What was found on rank 0, ``None`` on all others.

    Raises:
        ConfigError: a host has fewer devices than ranks.
        RankError: the ranks measured different things.
    """
    torch.set_num_threads(1)  # as ranks train: those of a host share its processors
    device = rank_device(request.device)
    dist.init_process_group(BACKENDS[request.device])
    try:
        is_first = dist.get_rank() == 0
        job = CalibrationJob(
            rounds=request.rounds,
            shortest_s=request.shortest_s,
            link_bit_per_s=None,
            device=request.device,
            disk=request.disk.resolve(),
            results=Path(),
        )
        samples = measure(job, tell=tell if is_first else _tell_nothing)
        ranks = _gather(samples, device)
        return judge(slowest(ranks), request, link_bit_per_s=None) if is_first else None
    finally:
        dist.destroy_process_group()


def _gather(samples: list[Sample], device: torch.device) -> list[tuple[Sample, ...]]:
    """The samples of all ranks, which travel as JSON."""
    text = json.dumps([dataclasses.asdict(sample) for sample in samples]).encode()
    sizes = torch.empty(dist.get_world_size(), dtype=torch.int64, device=device)
    dist.all_gather_single(sizes, torch.tensor([len(text)], device=device))
    longest = int(sizes.max())
    own = torch.zeros(longest, dtype=torch.uint8)
    own[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    rows = torch.empty((len(sizes), longest), dtype=torch.uint8, device=device)
    dist.all_gather_single(rows.view(-1), own.to(device))
    return [
        tuple(
            Sample(**{**entry, "seconds": tuple(entry["seconds"])})
            for entry in json.loads(bytes(row[:size].tolist()))
        )
        for row, size in zip(rows.cpu(), sizes.tolist(), strict=True)
    ]


def _tell_nothing(text: str) -> None:
    """The progress of other ranks is rank 0's."""
