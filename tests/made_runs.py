"""Runs and comparisons with chosen figures, for the tests of what is said about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thinwire.train.comparison import (
    CollectiveTraffic,
    Comparison,
    Link,
    Run,
    Setting,
    Spread,
)


def make_run(
    recipe: str,
    *,
    step_s: float,
    gathered_bytes: float = 2e6,
    reduced_bytes: float = 1e6,
    **changes: Any,
) -> Run:
    """A run of five steps, the first two settling, with a spread of 10 % around ``step_s``."""
    counted = (0.9 * step_s, step_s, 1.1 * step_s)
    values: dict[str, Any] = {
        "recipe": recipe,
        "step_s": Spread.of(counted),
        "measured": len(counted),
        "step_times_s": (3 * step_s, 2 * step_s, *counted),
        "settling_steps": 2,
        "losses": (5.5, 4.0, 3.0, 2.6, 2.5),
        "collectives": (
            CollectiveTraffic(
                name="all_gather", within_bytes=0, across_bytes=gathered_bytes, formats=("bf16",)
            ),
            CollectiveTraffic(
                name="reduce_scatter", within_bytes=0, across_bytes=reduced_bytes, formats=("bf16",)
            ),
        ),
        "nic_bytes_per_rank": 1.02 * (gathered_bytes + reduced_bytes),
        "validation_loss": 2.5,
        "peak_bytes": 400_000_000,
        "skipped_steps": 0,
        "parameters": 1_000_000,
        "predicted_step_s": None,
        **changes,
    }
    return Run(**values)


def make_setting(
    runs: Sequence[Run],
    *,
    link_bit_per_s: float | None = 100e6,
    ranks_per_host: int = 1,
    notice: str | None = None,
) -> Setting:
    """A setting whose link measures 1 % less than asked for."""
    link = (
        None
        if link_bit_per_s is None
        else Link(requested_bit_per_s=link_bit_per_s, measured_bit_per_s=0.99 * link_bit_per_s)
    )
    return Setting(link=link, ranks_per_host=ranks_per_host, notice=notice, runs=tuple(runs))


def make_comparison(main: Setting, unshaped: Setting | None = None, **changes: Any) -> Comparison:
    """A comparison on four hosts."""
    values: dict[str, Any] = {
        "hosts": 4,
        "world": 4 * main.ranks_per_host,
        "model": "gpt:2x64x2",
        "parameters": main.runs[0].parameters,
        "text": "a text",
        "seq_len": 64,
        "micro_batch": 2,
        "steps": 5,
        "seed": 0,
        "main": main,
        "unshaped": unshaped,
        **changes,
    }
    return Comparison(**values)
