"""The ranks of one process group, by number: how many, and how many of them on each host."""

from __future__ import annotations

import math
from dataclasses import dataclass

from thinwire.errors import ConfigError
from thinwire.planner.hardware import Cluster

__all__ = ["Group", "Parallelism"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A process group whose ranks are dealt out evenly, host after host.

    Attributes:
        size: ranks in the group.
        per_host: ranks of the group on each host; divides ``size``.
        sharers: groups like this one that share each host's link.
    """

    size: int
    per_host: int
    sharers: int = 1

    @property
    def hosts(self) -> int:
        """Hosts that the group spans."""
        return self.size // self.per_host

    @property
    def is_across(self) -> bool:
        """Whether any of its bytes leave a host."""
        return self.hosts > 1

    @property
    def within(self) -> Group:
        """The ranks of the group on one host."""
        return Group(size=self.per_host, per_host=self.per_host)

    @property
    def across(self) -> Group:
        """One rank of the group on each host."""
        return Group(size=self.hosts, per_host=1, sharers=self.sharers * self.per_host)

    def host_ranks(self, rank: int) -> range:
        """The ranks on the host of ``rank``, itself included."""
        first = rank // self.per_host * self.per_host
        return range(first, first + self.per_host)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """How the world is divided besides data parallelism; given, never searched.

    Attributes:
        tp: tensor-parallel ranks, all on one host.
        pp: pipeline stages.
        interleave: chunks of layers that each stage holds (arXiv 2104.04473, section 2.2).
        sequence: whether sequence parallelism divides what tensor parallelism leaves whole.
    """

    tp: int = 1
    pp: int = 1
    interleave: int = 1
    sequence: bool = False

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "interleave"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} = {getattr(self, name)}: at least 1 is needed")

    @property
    def in_flight(self) -> float:
        """Micro-batches whose activations the first stage keeps at once, in whole stages.

        One forward, one backward keeps as many as there are stages; interleaving adds
        (pp - 1) / interleave chunks (arXiv 2205.05198, section 4.2.3).
        """
        if self.interleave == 1:
            return float(self.pp)
        return self.pp * (1 + (self.pp - 1) / (self.pp * self.interleave))

    def data_group(self, cluster: Cluster) -> Group:
        """The ranks that hold the same slice of the model.

        Raises:
            ConfigError: the world is not divisible by tp x pp, or tp does not fit on a host.
        """
        model = self.tp * self.pp
        if cluster.world % model:
            raise ConfigError(
                f"{cluster.hosts} hosts x {cluster.ranks_per_host} ranks = {cluster.world} ranks "
                f"are not divisible by tp x pp = {self.tp} x {self.pp}; change one of them"
            )
        if cluster.ranks_per_host % self.tp:
            raise ConfigError(
                f"tp = {self.tp} must divide the {cluster.ranks_per_host} ranks of a host, since "
                "tensor parallelism across hosts is not modelled"
            )
        size = cluster.world // model
        per_host = math.gcd(size, cluster.ranks_per_host // self.tp)
        return Group(size=size, per_host=per_host, sharers=cluster.ranks_per_host // per_host)
