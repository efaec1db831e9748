"""thinwire: sharded PyTorch training over thin wires.

    import thinwire as tw

    model = tw.shard(model, tw.recipes.zeropp())

Importing this package loads no torch: every public name is resolved when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thinwire import recipes
    from thinwire.formats import WireFormat, parse_format
    from thinwire.planner import plan
    from thinwire.recipe import Recipe
    from thinwire.sharding import (
        accumulate,
        blank_compression_state,
        compress,
        compression_state,
        ledger,
        load_compression_state,
        shard,
        skip_step,
    )

__version__ = "0.1.0"

__all__ = [
    "Recipe",
    "WireFormat",
    "accumulate",
    "blank_compression_state",
    "compress",
    "compression_state",
    "ledger",
    "load_compression_state",
    "parse_format",
    "plan",
    "recipes",
    "shard",
    "skip_step",
]

_HOMES = {
    "Recipe": "thinwire.recipe",
    "WireFormat": "thinwire.formats",
    "accumulate": "thinwire.sharding",
    "blank_compression_state": "thinwire.sharding",
    "compress": "thinwire.sharding",
    "compression_state": "thinwire.sharding",
    "ledger": "thinwire.sharding",
    "load_compression_state": "thinwire.sharding",
    "parse_format": "thinwire.formats",
    "plan": "thinwire.planner",
    "shard": "thinwire.sharding",
    "skip_step": "thinwire.sharding",
}


def __getattr__(name: str) -> Any:
    """Resolve a public name on first use (PEP 562) and keep it."""
    if name == "recipes":
        return importlib.import_module("thinwire.recipes")
    if name not in _HOMES:
        raise AttributeError(f"module 'thinwire' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
