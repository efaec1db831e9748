"""Which ranks share a host: a fact about the launch, asked once and then looked up."""

from __future__ import annotations

import hashlib
import os
import socket
from dataclasses import dataclass

import torch
import torch.distributed as dist

from thinwire.errors import StateError

__all__ = ["Peers", "Topology", "discover_topology"]


@dataclass(frozen=True, slots=True)
class Peers:
    """One process group as seen from one rank: who sits next to whom, and on which host.

    Attributes:
        group: the process group.
        rank: this rank within the group.
        hosts: for every rank of the group, an identifier of its host.
    """

    group: dist.ProcessGroup
    rank: int
    hosts: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of ranks in the group."""
        return len(self.hosts)

    def is_across(self, peer: int) -> bool:
        """Whether bytes sent to rank ``peer`` of the group leave the host."""
        return self.hosts[peer] != self.hosts[self.rank]

    @property
    def successor(self) -> int:
        """The rank that receives what this rank sends in a ring."""
        return (self.rank + 1) % self.size


@dataclass(frozen=True, slots=True)
class Topology:
    """The host of every rank of the world.

    Attributes:
        hosts: for every rank of the world, an identifier of its host.
    """

    hosts: tuple[int, ...]

    def peers(self, group: dist.ProcessGroup) -> Peers:
        """The group's ranks with their hosts."""
        ranks = dist.get_process_group_ranks(group)
        return Peers(
            group=group,
            rank=dist.get_group_rank(group, dist.get_rank()),
            hosts=tuple(self.hosts[rank] for rank in ranks),
        )

    @property
    def ranks_per_host(self) -> int | None:
        """Ranks on each host when all hosts hold as many, host after host; otherwise ``None``."""
        first = self.hosts.count(self.hosts[0])
        consecutive = all(
            len(set(self.hosts[start : start + first])) == 1
            for start in range(0, len(self.hosts), first)
        )
        even = len(self.hosts) == first * len(set(self.hosts))
        return first if even and consecutive else None


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
    device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
    gathered = torch.empty(dist.get_world_size(), dtype=torch.int64, device=device)
    dist.all_gather_single(gathered, torch.tensor([value], dtype=torch.int64, device=device))
    return [int(item) for item in gathered.tolist()]


def _host_identity() -> int:
    launched = os.environ.get("GROUP_RANK")
    if launched is not None and launched.isdecimal():
        return int(launched)
    digest = hashlib.blake2b(socket.gethostname().encode(), digest_size=8).digest()
    # a negative number cannot be mistaken for a launcher's host index
    return -int.from_bytes(digest, "little") // 2 - 1
