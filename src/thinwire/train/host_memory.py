"""Whether a training fits in this machine's memory, asked before any process starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from thinwire.errors import ConfigError

__all__ = ["MemoryNeed", "available_bytes", "check_fits"]

FP32_BYTES = 4

# bytes per parameter that a rank holds whole, and that it holds a share of, by ZeRO stage: fp32
# parameters 4, gradients 4, AdamW moments 8 (arXiv 1910.02054, section 5). Stage 2 keeps a gathered
# copy of the parameters beside its share
WHOLE_AND_SHARED_BYTES = {0: (16, 0), 1: (8, 8), 2: (4, 16), 3: (0, 16)}

# memory that a rank shares with no other one, with torch 2.13 for CPUs, FSDP2 and Numba imported
# and no model built: Private_Dirty in /proc/self/smaps_rollup
PROCESS_BYTES = 211_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """What the model states of a training take on one machine that runs all ranks.

    Activations are left out: they depend on the model and on the sequences, and a text that is
    too long shows itself in the first step. Everything else is a lower bound that must fit.
    """

    parameters: int
    stage: int
    world: int

    @property
    def states_bytes(self) -> int:
        """Parameters, gradients and AdamW moments per rank, between steps."""
        whole, shared = WHOLE_AND_SHARED_BYTES[self.stage]
        return self.parameters * whole + -(-self.parameters // self.world) * shared

    @property
    def start_bytes(self) -> int:
        """At start a rank builds the whole model, then copies its own shard out of it."""
        whole = self.parameters * FP32_BYTES
        return whole if self.stage == 0 else whole + -(-whole // self.world)

    @property
    def total_bytes(self) -> int:
        """All ranks together."""
        return self.world * (max(self.states_bytes, self.start_bytes) + PROCESS_BYTES)


def check_fits(need: MemoryNeed, *, available: int) -> None:
    """Raise unless a training fits.

    Args:
        need: of the most demanding recipe.
        available: bytes that may be allocated, from :func:`available_bytes`.

    Raises:
        ConfigError: says by how many GB it does not fit and what to shrink.
    """
    missing = need.total_bytes - available
    if missing <= 0:
        return
    raise ConfigError(
        f"model of {need.parameters} parameters: {need.world} ranks on this machine need "
        f"{need.total_bytes / 1e9:.1f} GB for parameters, gradients and AdamW states at stage "
        f"{need.stage}, {missing / 1e9:.1f} GB more than the {available / 1e9:.1f} GB available; "
        "choose a smaller --model or fewer ranks"
    )


def available_bytes(root: Path = Path("/")) -> int | None:
    """Memory that may be allocated now: the machine's, or the control group's if that is less.

    Args:
        root: where ``proc`` and ``sys`` are mounted.

    Returns:
        Bytes, or ``None`` where the system does not tell.
    """
    known = [_machine_bytes(root), _group_bytes(root)]
    return min((number for number in known if number is not None), default=None)


def _machine_bytes(root: Path) -> int | None:
    for line in _read_lines(root / "proc/meminfo"):
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return None


def _group_bytes(root: Path) -> int | None:
    """What the control group (version 2, then 1) still allows; its page cache can be reclaimed."""
    base = root / "sys/fs/cgroup"
    for limit_file, usage_file, stat_file in (
        ("memory.max", "memory.current", "memory.stat"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
    ):
        limit, usage = _read_lines(base / limit_file), _read_lines(base / usage_file)
        if limit and usage and limit[0] != "max":
            reclaimable = 0
            for line in _read_lines(base / stat_file):
                name, _, number = line.partition(" ")
                if name in ("inactive_file", "total_inactive_file"):
                    reclaimable = int(number)
            return max(0, int(limit[0]) - int(usage[0]) + reclaimable)
    return None


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").splitlines()
    except OSError:
        return []
