"""Which ranks share a host: a fact about the launch, asked once and then looked up."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from thinwire.errors import StateError

__all__ = [
    "Peers",
    "Topology",
    "backend_device",
    "discover_topology",
    "even_ranks_per_host",
    "gather_integers",
]


@dataclass(frozen=True, slots=True)
class Peers:
    """The ranks that take part in a collective, as seen from one of them.

    Attributes:
        group: the process group through which they talk.
        ranks: their ranks in that group; a part of the group, or all of it.
        rank: the position of this rank among them.
        hosts: for every one of them, an identifier of its host.
    """

    group: dist.ProcessGroup
    ranks: tuple[int, ...]
    rank: int
    hosts: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of ranks that take part."""
        return len(self.ranks)

    def is_across(self, peer: int) -> bool:
        """Whether bytes sent to the one at position ``peer`` leave the host."""
        return self.hosts[peer] != self.hosts[self.rank]

    @property
    def successor(self) -> int:
        """The position that receives what this rank sends in a ring."""
        return (self.rank + 1) % self.size

    def subset(self, positions: Sequence[int]) -> Peers:
        """Only those at the given positions, of which this rank must be one."""
        return Peers(
            group=self.group,
            ranks=tuple(self.ranks[position] for position in positions),
            rank=list(positions).index(self.rank),
            hosts=tuple(self.hosts[position] for position in positions),
        )


@dataclass(frozen=True, slots=True)
class Topology:
    """The host of every rank of the world.

    Attributes:
        hosts: for every rank of the world, an identifier of its host.
    """

    hosts: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of ranks in the world."""
        return len(self.hosts)

    def peers(self, group: dist.ProcessGroup) -> Peers:
        """The group's ranks with their hosts."""
        ranks = dist.get_process_group_ranks(group)
        return Peers(
            group=group,
            ranks=tuple(range(len(ranks))),
            rank=dist.get_group_rank(group, dist.get_rank()),
            hosts=tuple(self.hosts[rank] for rank in ranks),
        )

    @property
    def ranks_per_host(self) -> int | None:
        """Ranks on each host, or ``None``; see :func:`even_ranks_per_host`."""
        return even_ranks_per_host(self.hosts)


def even_ranks_per_host(hosts: Sequence[int]) -> int | None:
    """Ranks on each host when all hold as many and host follows host; otherwise ``None``."""
    first = list(hosts).count(hosts[0])
    blocks = [set(hosts[start : start + first]) for start in range(0, len(hosts), first)]
    even = len(hosts) == first * len(set(hosts))
    return first if even and all(len(block) == 1 for block in blocks) else None


def discover_topology() -> Topology:
    """Ask every rank of the world for its host. A collective call.

    A rank is on the host that its launcher says (``GROUP_RANK``, which torchrun sets), else on the
    machine that its host name says.

    Raises:
        StateError: ``torch.distributed`` is not initialized.
    """
    return Topology(hosts=tuple(gather_integers(_host_identity())))


def gather_integers(value: int) -> list[int]:
    """One signed 64-bit integer from every rank of the world, in rank order. A collective call.

    Raises:
        StateError: ``torch.distributed`` is not initialized.
    """
    if not dist.is_initialized():
        raise StateError(
            "torch.distributed is not initialized: call torch.distributed.init_process_group() "
            "first, and start the script with torchrun"
        )
    device = backend_device()
    gathered = torch.empty(dist.get_world_size(), dtype=torch.int64, device=device)
    dist.all_gather_single(gathered, torch.tensor([value], dtype=torch.int64, device=device))
    return [int(item) for item in gathered.tolist()]


def backend_device(group: dist.ProcessGroup | None = None) -> torch.device:
    """Where what a group's backend sends must be.

    Args:
        group: a process group; by default the world.
    """
    return torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu")


def _host_identity() -> int:
    launched = os.environ.get("GROUP_RANK")
    if launched is not None and launched.isdecimal():
        return int(launched)
    digest = hashlib.blake2b(socket.gethostname().encode(), digest_size=8).digest()
    # a negative number cannot be mistaken for a launcher's host index
    return -int.from_bytes(digest, "little") // 2 - 1
