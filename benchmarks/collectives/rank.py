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
                tag = start // CHUNK_BYTES
                works.append(post(chunk, peer, group=peers.group, tag=tag))
    for work in works:
        if work is not None:
            work.wait()


def measure(
    action: Callable[[Peers], object], payload_bytes: int, bit_per_s: float
) -> dict[str, float]:
    """The share of the link that carried payload, and interface bytes per payload byte.

    A way has connections of its own and runs several times in a row, as blocks of a step do: one
    that lost packets, or rested, is slow for several calls to come, whoever calls.
    """
    group = dist.new_group()
    peers = discover_topology().peers(group)
    seconds: list[float] = []
    sent = 0
    for repeat in range(WARM_UP + REPEATS):
        before = sent_bytes()
        dist.barrier(group)
        start = time.perf_counter()
        action(peers)
        dist.barrier(group)
        if repeat >= WARM_UP:
            seconds.append(time.perf_counter() - start)
            sent += sent_bytes() - before
    dist.destroy_process_group(group)
    return {
        "share": payload_bytes * 8 / bit_per_s / statistics.median(seconds),
        "interface": sent / REPEATS / payload_bytes,
    }


def ways_of(nbytes: int, size: int) -> dict[str, Callable[[Peers], object]]:
    """Ways in which every rank sends so many bytes to each of the others."""
    outgoing = [torch.randint(0, 255, (nbytes,), dtype=torch.uint8) for _ in range(size)]
    incoming = [torch.empty_like(payload) for payload in outgoing]
    rows = torch.empty((size, nbytes), dtype=torch.uint8)
    flat, mixed = torch.cat(outgoing), torch.empty(size * nbytes, dtype=torch.uint8)
    floats, slot = torch.zeros(size * nbytes // 4), torch.empty(nbytes // 4)
    return {
        "exchange in rounds (ours)": lambda peers: exchange(outgoing, incoming, peers),
        "exchange in chunks": lambda peers: chunked(outgoing, incoming, peers),
        "gloo all-to-all": lambda peers: dist.all_to_all_single(mixed, flat, group=peers.group),
        "gloo reduce-scatter": lambda peers: dist.reduce_scatter_single(
            slot, floats, group=peers.group
        ),
        "gather in rounds (ours)": lambda peers: gather_rows(outgoing[0], rows, peers),
        "gloo all-gather": lambda peers: dist.all_gather_single(
            mixed, outgoing[0], group=peers.group
        ),
    }


def main() -> None:
    torch.set_num_threads(1)
    bit_per_s, sizes = float(sys.argv[1]), [int(float(text)) for text in sys.argv[2].split(",")]
    dist.init_process_group("gloo")
    size = dist.get_world_size()
    for nbytes in sizes:
        for name, action in ways_of(nbytes, size).items():
            found = measure(action, (size - 1) * nbytes, bit_per_s)
            if dist.get_rank() == 0:
                print(json.dumps({"way": name, "payload_bytes": nbytes, **found}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
