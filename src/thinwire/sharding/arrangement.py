"""By how many ranks, and how arranged, a state was made: what it takes to deal it out to others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.comm.topology import even_ranks_per_host
from thinwire.errors import StateError
from thinwire.recipe import Recipe
from thinwire.sharding.compression import Compression

__all__ = ["ARRANGEMENT", "HOSTS", "Arrangement"]

ARRANGEMENT = "shared/arrangement"
HOSTS = f"{ARRANGEMENT}/hosts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """How ranks share hosts, parameters and sums.

    Attributes:
        hosts: the index of every rank's host, counted from 0 in the order of the ranks.
        num_shards: the ranks over which FSDP2 deals out the rows of every parameter; 1: parameters
            are whole; 0: they are cut in another way.
        divisor: by what sums over these ranks are divided, where that is fixed; ``None``: by their
            number. See :func:`thinwire.comm.reduction.fixed_divisor`.
    """

    hosts: tuple[int, ...]
    num_shards: int
    divisor: float | None = None

    @classmethod
    def of(cls, compression: Compression) -> Arrangement:
        """That of the ranks at work."""
        indices: dict[int, int] = {}
        for host in compression.topology.hosts:
            indices.setdefault(host, len(indices))
        return cls(
            hosts=tuple(indices[host] for host in compression.topology.hosts),
            num_shards=compression.num_shards,
            divisor=compression.divisor,
        )

    @classmethod
    def read(cls, state: Mapping[str, Tensor]) -> Arrangement:
        """That of the ranks which saved a state.

        Raises:
            StateError: it is no state of compression.
        """
        hosts, num_shards = state.get(HOSTS), state.get(f"{ARRANGEMENT}/num_shards")
        divisor = state.get(f"{ARRANGEMENT}/divisor")
        if (
            hosts is None
            or num_shards is None
            or not (_is_whole(hosts, 1) and _are_hosts(hosts.tolist()))
            or not (_is_whole(num_shards, 0) and num_shards >= 0)
            or (divisor is not None and (divisor.numel() != 1 or divisor <= 0))
        ):
            raise StateError(
                "this is no compression state: pass what thinwire.compression_state returned"
            )
        return cls(
            hosts=tuple(int(host) for host in hosts.tolist()),
            num_shards=int(num_shards),
            divisor=None if divisor is None else float(divisor),
        )

    def usual_shards(self, recipe: Recipe) -> int:
        """The ranks that share rows of every parameter where all ranks train one model."""
        if recipe.hybrid:
            return self.size // self.num_hosts
        return self.size if recipe.stage else 1

    def state(self) -> dict[str, Tensor]:
        """Entries of a state, from which :meth:`read` makes it again."""
        entries = {
            HOSTS: torch.tensor(self.hosts),
            f"{ARRANGEMENT}/num_shards": torch.tensor(self.num_shards),
        }
        if self.divisor is not None:
            entries[f"{ARRANGEMENT}/divisor"] = torch.tensor(self.divisor, dtype=torch.float64)
        return entries

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.hosts)

    @property
    def num_hosts(self) -> int:
        """Number of hosts."""
        return max(self.hosts) + 1

    @property
    def has_two_levels(self) -> bool:
        """Whether there are several hosts of several ranks, as many on each."""
        per_host = even_ranks_per_host(self.hosts)
        return per_host is not None and 1 < per_host < self.size

    def __str__(self) -> str:
        return f"{self.size} ranks on {self.num_hosts} hosts"


def _is_whole(tensor: Tensor, dim: int) -> bool:
    return tensor.dtype == torch.int64 and tensor.dim() == dim


def _are_hosts(hosts: list[int]) -> bool:
    """Whether there is a host, and hosts are counted from 0 in the order of the ranks."""
    return bool(hosts) and list(dict.fromkeys(hosts)) == list(range(max(hosts) + 1))
