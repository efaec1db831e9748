"""Blocks of a large tensor on as many threads as torch uses.

Kernels let go of the interpreter lock, so plain threads do. Blocks share no bytes of a payload, and
random numbers are keyed by the block: the result does not depend on the number of threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch

__all__ = ["over_blocks"]

# A tenth of a millisecond of encoding: less is not worth waking a thread.
_ELEMENTS_PER_THREAD = 1 << 18


def over_blocks(work: Callable[[int, int], object], num_blocks: int, numel: int) -> None:
    """Call ``work(first, last)`` for ranges that cover all blocks, at the same time.

    Args:
        work: encodes or decodes the blocks from ``first`` up to ``last``.
        num_blocks: of the tensor.
        numel: of the tensor.
    """
    num_threads = min(torch.get_num_threads(), numel // _ELEMENTS_PER_THREAD, num_blocks)
    if num_threads <= 1:
        work(0, num_blocks)
        return
    edges = [num_blocks * index // num_threads for index in range(num_threads + 1)]
    others = [_pool().submit(work, *edges[index : index + 2]) for index in range(1, num_threads)]
    work(*edges[:2])
    for other in others:
        other.result()


@cache
def _pool() -> ThreadPoolExecutor:
    # Threads start when work waits and none is idle, so a large limit costs nothing.
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="thinwire-kernel")


# A forked process has no threads but its own.
os.register_at_fork(after_in_child=_pool.cache_clear)
