"""Ranks must agree on what they are about to do, or the first collective hangs."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist

from thinwire.comm.topology import backend_device, gather_integers
from thinwire.errors import ConfigError, ThinwireError
from thinwire.quoting import shortened

__all__ = ["refused_together", "require_agreement"]

_LONGEST_ITEM = 200  # in a message: names of parameters are long


@contextmanager
def refused_together(call: str, error: type[ThinwireError] = ConfigError) -> Iterator[None]:
    """Have what one rank refuses be refused on every rank. A collective call.

    Without it a rank that raises leaves the others alone in their next collective. What runs within
    must not communicate: a rank that raised half-way would be missing there.

    Args:
        call: what is refused, for the message: ``"thinwire.shard"``.
        error: what ranks raise that had nothing to refuse themselves.

    Raises:
        ThinwireError: ``error``, which names the ranks that refused. Those raise what they raised.
    """
    try:
        yield
    except Exception:
        if dist.is_initialized():
            gather_integers(1)
        raise
    if not dist.is_initialized():
        return
    refusing = [rank for rank, refuses in enumerate(gather_integers(0)) if refuses]
    if refusing:
        raise error(
            f"{call} was refused on rank(s) {_listed(refusing)}, and so on all: see the error "
            "there for what to do"
        )


def require_agreement(
    what: str, description: Sequence[str], error: type[ThinwireError] = ConfigError
) -> None:
    """Raise on every rank unless all ranks pass the same description. A collective call.

    Args:
        what: what is described, for the message: ``"recipe"``.
        description: the items that must be equal, such as ``"seed=0"``.
        error: what is raised.

    Raises:
        ThinwireError: ``error``: the descriptions differ; names the ranks that differ from rank 0,
            and the first item in which the first of them does.
    """
    text = "\n".join(description).encode()
    digest = hashlib.blake2b(text, digest_size=8).digest()
    digests = gather_integers(int.from_bytes(digest, "little", signed=True))
    different = [rank for rank, other in enumerate(digests) if other != digests[0]]
    if not different:
        return
    # every rank is here, and shows the two sides
    lengths = gather_integers(len(text))
    ours, theirs = (_told_by(rank, text, lengths[rank]) for rank in (0, different[0]))
    raise error(
        f"the {what} differs between ranks: rank(s) {_listed(different)} differ from rank 0; "
        f"every rank must pass the same {what} ({_first_difference(ours, theirs, different[0])})"
    )


def _told_by(rank: int, text: bytes, length: int) -> list[str]:
    """The description of one rank, on every rank."""
    own = text if dist.get_rank() == rank else bytes(length)
    told = torch.tensor(list(own), dtype=torch.uint8, device=backend_device())
    if length:
        dist.broadcast(told, src=rank)
    return bytes(told.tolist()).decode().split("\n")


def _first_difference(ours: list[str], theirs: list[str], rank: int) -> str:
    pairs = itertools.zip_longest(ours, theirs, fillvalue="nothing more")
    one, other = next((one, other) for one, other in pairs if one != other)
    one, other = (shortened(item, _LONGEST_ITEM) for item in (one, other))
    return f"rank 0 has {one}, rank {rank} has {other}"


def _listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
