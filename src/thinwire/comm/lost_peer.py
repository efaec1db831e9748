"""A peer that does not answer: the backend's error, which names an address, with the rank's name.

A rank that waits for another one learns of its end in two ways: the connection is closed, or the
process group's timeout passes. Which of its peers that was, only the collective knows. Where a rank
hangs and all timeouts pass at once, one that waits for a healthy rank names that one, whose log
leads on.
"""

from __future__ import annotations

import torch.distributed as dist

from thinwire.comm.topology import Peers
from thinwire.errors import RankError

__all__ = ["lost_in_ring", "lost_peer"]


def lost_peer(peers: Peers, positions: tuple[int, ...], error: RuntimeError) -> RankError:
    """The error to raise, from the backend's, when one of some peers did not answer.

    Args:
        peers: those who take part.
        positions: whom this rank was waiting for; the backend does not say which of several.
        error: what the backend raised.
    """
    listed = " or ".join(_named(peers, position) for position in dict.fromkeys(positions))
    return RankError(
        f"rank {dist.get_rank()} waited for {listed}, which closed the connection or did not "
        "answer in time, perhaps since it waited for another one itself; look at the log of that "
        f"rank for what happened first ({error})"
    )


def lost_in_ring(peers: Peers, error: RuntimeError) -> RankError:
    """The same for a ring, in which a rank waits for both its neighbours."""
    return lost_peer(peers, ((peers.rank - 1) % peers.size, peers.successor), error)


def _named(peers: Peers, position: int) -> str:
    rank = dist.get_global_rank(peers.group, peers.ranks[position])
    host = peers.hosts[position]
    # without a launcher's number a host is the digest of its name, which tells nobody anything
    return f"rank {rank}" if host < 0 else f"rank {rank} on host {host}"
