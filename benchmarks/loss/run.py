"""Claim: a compressed recipe's held-out loss stays near that of fp32, over several seeds.

python benchmarks/loss/run.py --recipes qsdp,zeropp --steps 400 --seeds 3
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from record import compare, table, write  # noqa: E402 - the folder above is not a package

BASELINE = "zero3:compute=fp32"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--recipes", default="qsdp:compute=fp32,zeropp:compute=fp32,thin:compute=fp32"
    )
    parser.add_argument("--model", default="gpt:2x128x4")
    parser.add_argument("--hosts", default="4")
    parser.add_argument("--ranks", default="1", help="of a host")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--name", default="results", help="of the files that are written")
    options = parser.parse_args()
    recipes = [BASELINE, *options.recipes.split(",")]
    losses: dict[str, list[float]] = {recipe: [] for recipe in recipes}
    for seed in range(options.seeds):
        document = compare(
            *("--recipes", ",".join(recipes), "--model", options.model),
            *("--hosts", options.hosts, "--ranks", options.ranks),
            *("--steps", str(options.steps), "--seed", str(seed)),
            *("--seq", "64", "--micro-batch", "2"),
        )
        for run in document["runs"]:
            losses[run["recipe"]].append(run["validation_loss"])
    rows = []
    for recipe in recipes:
        drifts = [
            100 * (loss / baseline - 1)
            for loss, baseline in zip(losses[recipe], losses[BASELINE], strict=True)
        ]
        cells = [
            f"{loss:.4f} ({drift:+.2f} %)"
            for loss, drift in zip(losses[recipe], drifts, strict=True)
        ]
        rows.append([f"`{recipe}`", *cells, f"{statistics.mean(drifts):+.2f} %", _error(drifts)])
    header = ["recipe", *(f"seed {seed}" for seed in range(options.seeds))]
    header += ["mean drift", "standard error"]
    text = (
        f"Held-out loss (nats per byte) of {options.model} after {options.steps} steps of 2 x 64 "
        f"bytes per rank on {options.hosts} hosts x {options.ranks}; in brackets the drift from "
        f"{BASELINE}.\n\n"
    )
    figures = {"losses": losses, "options": vars(options)}
    write(HERE, figures, text + table(header, rows), options.name)


def _error(drifts: list[float]) -> str:
    """Of the mean: what seeds alone may move it by."""
    if len(drifts) == 1:
        return "-"
    return f"{statistics.stdev(drifts) / len(drifts) ** 0.5:.2f} %"


if __name__ == "__main__":
    main()
