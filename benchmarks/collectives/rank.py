"""One rank of the collectives benchmark: times each way of moving payloads over gloo."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.comm.exchange import exchange, gather, gather_in_ring
from thinwire.comm.topology import Peers, discover_topology
from thinwire.lab import read_interface

CHUNK_BYTES = 512 * 1024
REPEATS = 5


def sent_bytes() -> int:
    return read_interface(os.environ["GLOO_SOCKET_IFNAME"]).sent_bytes


def chunked(outgoing: list[Tensor], incoming: list[Tensor], peers: Peers) -> None:
    """All receives posted, then all sends, in chunks: what rounds are compared with."""
    rank, size = peers.rank, peers.size
    incoming[rank].copy_(outgoing[rank])
    starts = range(0, len(outgoing[0]), CHUNK_BYTES)
    works = []
    for post, buffers, sign in ((dist.irecv, incoming, -1), (dist.isend, outgoing, 1)):
        for start in starts:
            for distance in range(1, size):
                peer = (rank + sign * distance) % size
                chunk = buffers[peer][start : start + CHUNK_BYTES]
                works.append(post(chunk, peer, tag=start // CHUNK_BYTES))
    for work in works:
        if work is not None:
            work.wait()


def measure(action: Callable[[], object], payload_bytes: int, bit_per_s: float) -> dict[str, float]:
    """Share of the link that carried payload, and interface bytes per payload byte."""
    action()
    seconds, before = [], sent_bytes()
    for _ in range(REPEATS):
        dist.barrier()
        start = time.perf_counter()
        action()
        dist.barrier()
        seconds.append(time.perf_counter() - start)
    share = payload_bytes * 8 / bit_per_s / statistics.median(seconds)
    return {"share": share, "interface": (sent_bytes() - before) / REPEATS / payload_bytes}


def main() -> None:
    torch.set_num_threads(1)
    bit_per_s, sizes = float(sys.argv[1]), [int(float(text)) for text in sys.argv[2].split(",")]
    dist.init_process_group("gloo")
    group = dist.group.WORLD
    assert group is not None
    peers, size = discover_topology().peers(group), dist.get_world_size()
    for nbytes in sizes:
        outgoing = [torch.randint(0, 255, (nbytes,), dtype=torch.uint8) for _ in range(size)]
        incoming = [torch.empty_like(payload) for payload in outgoing]
        rows = torch.empty((size, nbytes), dtype=torch.uint8)
        flat, mixed = torch.cat(outgoing), torch.empty(size * nbytes, dtype=torch.uint8)
        floats, slot = torch.zeros(size * nbytes // 4), torch.empty(nbytes // 4)
        ways: dict[str, Callable[[], object]] = {
            "exchange in rounds (ours)": lambda: exchange(outgoing, incoming, peers),  # noqa: B023
            "exchange in chunks": lambda: chunked(outgoing, incoming, peers),  # noqa: B023
            "gloo all-to-all": lambda: dist.all_to_all_single(mixed, flat),  # noqa: B023
            "gloo reduce-scatter": lambda: dist.reduce_scatter_single(slot, floats),  # noqa: B023
            "gather in ring (ours)": lambda: gather_in_ring(outgoing[0], rows, peers),  # noqa: B023
            "gather in rounds (ours)": lambda: gather(outgoing[0], list(rows), peers),  # noqa: B023
            "gloo all-gather": lambda: dist.all_gather_single(mixed, outgoing[0]),  # noqa: B023
        }
        for name, action in ways.items():
            found = measure(action, (size - 1) * nbytes, bit_per_s)
            if dist.get_rank() == 0:
                print(json.dumps({"way": name, "payload_bytes": nbytes, **found}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
