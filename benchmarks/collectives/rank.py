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

from thinwire.comm.exchange import exchange, gather_rows
from thinwire.comm.topology import Peers, discover_topology
from thinwire.lab import read_interface

CHUNK_BYTES = 512 * 1024
WARM_UP, REPEATS = 2, 9


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


def measure(
    ways: dict[str, Callable[[], object]], payload_bytes: int, bit_per_s: float
) -> dict[str, dict[str, float]]:
    """By way: share of the link that carried payload, and interface bytes per payload byte.

    The ways take turns, for a connection that lost a packet is slow for several calls to come.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    sent = dict.fromkeys(ways, 0)
    for repeat in range(WARM_UP + REPEATS):
        for name, action in ways.items():
            before = sent_bytes()
            dist.barrier()
            start = time.perf_counter()
            action()
            dist.barrier()
            if repeat >= WARM_UP:
                seconds[name].append(time.perf_counter() - start)
                sent[name] += sent_bytes() - before
    least_s = payload_bytes * 8 / bit_per_s
    return {
        name: {
            "share": least_s / statistics.median(seconds[name]),
            "interface": sent[name] / REPEATS / payload_bytes,
        }
        for name in ways
    }


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
            "gather in rounds (ours)": lambda: gather_rows(outgoing[0], rows, peers),  # noqa: B023
            "gloo all-gather": lambda: dist.all_gather_single(mixed, outgoing[0]),  # noqa: B023
        }
        for name, found in measure(ways, (size - 1) * nbytes, bit_per_s).items():
            if dist.get_rank() == 0:
                print(json.dumps({"way": name, "payload_bytes": nbytes, **found}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
