"""Averages of whole gradients over the ranks, for whoever has them whole: DDP and local steps.

An average takes any set of gradients by the parameters' names, so its result does not depend on how
parameters were grouped into buckets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from thinwire.comm.sender import Job
from thinwire.comm.topology import Peers
from thinwire.sharding.compression import Compression
from thinwire.sharding.low_rank import LowRankAverage, RightFactors
from thinwire.sharding.sliced import SlicedAverage
from thinwire.wire.key import Key

__all__ = ["Average", "average_over"]


class Average(Protocol):
    """Averages gradients over the ranks, in place."""

    def job(self, gradients: Mapping[str, Tensor], key: Key) -> Job:
        """The average as a job; what travels in which format is settled when this is called.

        Args:
            gradients: by the parameters' names; contiguous, of one dtype, on one device.
            key: of the random numbers; the rank is part of it.
        """


def average_over(peers: Peers, compression: Compression) -> Average:
    """The average that a recipe's formats ask for.

    Args:
        peers: the ranks that take part.
        compression: what all sockets of the model share; right factors are kept there.
    """
    if all(fmt.family != "lowrank" for fmt in compression.recipe.grad_rule.formats):
        return SlicedAverage(compression, peers)
    factors = RightFactors()
    compression.stores["factors"] = factors
    return LowRankAverage(compression, peers, factors)
