"""Ranks must agree on what they are about to do, or the first collective hangs."""

from __future__ import annotations

import hashlib

from thinwire.comm.topology import gather_integers
from thinwire.errors import ConfigError

__all__ = ["require_agreement"]


def require_agreement(what: str, description: str) -> None:
    """Raise on every rank unless all ranks pass the same description. A collective call.

    Args:
        what: what is described, for the message: ``"recipe"``.
        description: the full text that must be equal.

    Raises:
        ConfigError: the descriptions differ; names the ranks that differ from rank 0.
    """
    digest = hashlib.blake2b(description.encode(), digest_size=8).digest()
    digests = gather_integers(int.from_bytes(digest, "little", signed=True))
    different = [rank for rank, other in enumerate(digests) if other != digests[0]]
    if different:
        listed = ", ".join(map(str, different[:8])) + (", ..." if len(different) > 8 else "")
        raise ConfigError(
            f"the {what} differs between ranks: rank(s) {listed} differ from rank 0; "
            f"every rank must pass the same {what} (here: {description[:200]})"
        )
