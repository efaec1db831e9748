"""Ranks must agree on what they are about to do, or the first collective hangs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from thinwire.comm.topology import gather_integers
from thinwire.errors import ConfigError, ThinwireError

__all__ = ["refused_together", "require_agreement"]


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
    what: str, description: str, error: type[ThinwireError] = ConfigError
) -> None:
    """Raise on every rank unless all ranks pass the same description. A collective call.

    Args:
        what: what is described, for the message: ``"recipe"``.
        description: the full text that must be equal.
        error: what is raised.

    Raises:
        ThinwireError: ``error``: the descriptions differ; names the ranks that differ from rank 0.
    """
    digest = hashlib.blake2b(description.encode(), digest_size=8).digest()
    digests = gather_integers(int.from_bytes(digest, "little", signed=True))
    different = [rank for rank, other in enumerate(digests) if other != digests[0]]
    if different:
        raise error(
            f"the {what} differs between ranks: rank(s) {_listed(different)} differ from rank 0; "
            f"every rank must pass the same {what} (here: {description[:200]})"
        )


def _listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
