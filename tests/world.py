"""Runs the body of a test in several processes that form a gloo world.

    def body(rank: int, size: int) -> None: ...
    run_world(body, 3)

The body must be a function at the top of a module. The processes meet through a file, so there is
no port to hunt for. An error in one rank ends the others and is raised with the rank's traceback.
They are forked from a server that has run `ready_rank`: a world starts in tenths of a second.
"""

from __future__ import annotations

import os
import pickle
import queue
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from multiprocessing import forkserver
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

TIMEOUT_S = 120


def run_world(
    body: Callable[..., Any], size: int, *args: object, ranks_per_host: int = 1
) -> list[Any]:
    """Run ``body(rank, size, *args)`` in ``size`` processes and return what they returned."""
    context = mp.get_context("forkserver")
    _start_server()
    with tempfile.TemporaryDirectory() as folder:
        results = context.Queue()
        processes = [
            context.Process(
                target=_enter, args=(rank, size, ranks_per_host, folder, body, args, results)
            )
            for rank in range(size)
        ]
        for process in processes:
            process.start()
        try:
            outcomes = _collect(results, processes)
            exit_codes = [process.exitcode for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.join()
    failures = {rank: value for rank, (succeeded, value) in outcomes.items() if not succeeded}
    # a negative exit code is the number of the signal that ended a rank; None: it was still running
    missing = {rank: exit_codes[rank] for rank in range(size) if rank not in outcomes}
    if failures or missing:
        told = "\n".join(f"rank {rank}:\n{text}" for rank, text in sorted(failures.items()))
        pytest.fail(f"{told}\nexit codes of ranks without an answer: {missing}", pytrace=False)
    return [outcomes[rank][1] for rank in range(size)]


@cache
def _start_server() -> None:
    """Start the server that ranks are forked from; it lives as long as this process."""
    found_at = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    forkserver.set_forkserver_preload(["ready_rank"])
    with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(found_at)):
        forkserver.ensure_running()


def _collect(results: Any, processes: list[Any]) -> dict[int, tuple[bool, Any]]:
    """Answers by rank, until all have answered, one has failed, or time is up."""
    outcomes: dict[int, tuple[bool, Any]] = {}
    deadline = time.monotonic() + TIMEOUT_S
    while len(outcomes) < len(processes) and time.monotonic() < deadline:
        try:
            rank, succeeded, answer = results.get(timeout=0.2)
        except queue.Empty:
            if not any(process.is_alive() for process in processes):
                break  # a rank died without a word
            continue
        outcomes[rank] = (succeeded, pickle.loads(answer))  # noqa: S301 - from our own process
        if not succeeded:
            # the other ranks may be telling the same story; they get a moment to do so
            deadline = min(deadline, time.monotonic() + 2)
    return outcomes


def _enter(
    rank: int,
    size: int,
    ranks_per_host: int,
    folder: str,
    body: Callable[..., Any],
    args: tuple[object, ...],
    results: Any,
) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ["GROUP_RANK"] = str(rank // ranks_per_host)
    os.environ["LOCAL_WORLD_SIZE"] = str(ranks_per_host)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{Path(folder) / 'store'}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=TIMEOUT_S / 2),
    )
    # a rank whose body ends before others have connected would fail them
    dist.barrier()
    try:
        succeeded, value = True, body(rank, size, *args)
    except BaseException:
        succeeded, value = False, traceback.format_exc()
    try:
        # bytes: a tensor in a queue is a handle, which is void once the process has ended
        results.put((rank, succeeded, pickle.dumps(value)))
    finally:
        results.close()
        results.join_thread()
        dist.destroy_process_group()
