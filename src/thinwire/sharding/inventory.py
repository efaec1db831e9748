"""Which entries a rank's state has: what was left out on the way would be missed by nobody."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from thinwire.errors import StateError

__all__ = ["check_inventory", "inventory_entry", "inventory_of"]


def inventory_of(rank: int) -> str:
    """The name of the entry."""
    return f"rank{rank}/inventory"


def inventory_entry(entries: Iterable[str], rank: int) -> Tensor:
    """A digest of the names that a rank saves, its own and the shared ones: uint8, [16]."""
    names = sorted(
        entry
        for entry in entries
        if entry.startswith(("shared/", f"rank{rank}/")) and entry != inventory_of(rank)
    )
    digest = hashlib.blake2b("\n".join(names).encode(), digest_size=16).digest()
    return torch.tensor(list(digest), dtype=torch.uint8)


def check_inventory(state: Mapping[str, Tensor], rank: int) -> None:
    """Raise if the entries of a rank are not those that it saved.

    Raises:
        StateError: some are missing, or were added.
    """
    saved = state.get(inventory_of(rank))
    if saved is None:
        raise StateError(
            f"the state holds nothing that rank {rank} saved, or not all of it: pass the whole of "
            "what thinwire.compression_state returned, or leave the state out"
        )
    if not torch.equal(saved.cpu(), inventory_entry(state, rank)):
        raise StateError(
            f"the state's entries are not those that rank {rank} saved: some are missing, or were "
            "added; pass the whole of what thinwire.compression_state returned, or leave it out"
        )
