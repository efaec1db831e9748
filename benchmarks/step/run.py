"""Claim: over a thin wire a step is several times faster than with stock FSDP2.

python benchmarks/step/run.py --cell A
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from record import compare, table, write  # noqa: E402 - the folder above is not a package

COMMON = ("--model", "gpt:6x512x8", "--seq", "64", "--micro-batch", "1")
CELLS = {
    "A": ("4 hosts x 1 rank, 200 Mbit/s", ("--hosts", "4", "--link", "200mbit", *COMMON)),
    "B": (
        "2 hosts x 2 ranks, 200 Mbit/s",
        ("--hosts", "2", "--ranks", "2", "--link", "200mbit", *COMMON),
    ),
}
RECIPES = "zero3:compute=fp32,zero3,zero3:compute=fp32:weights=bf16,qsdp,"
RECIPES += "zeropp:replica=none,zeropp,sdp4bit,thin"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cell", choices=CELLS, action="append")
    parser.add_argument("--recipes", default=RECIPES)
    parser.add_argument("--steps", default="10")
    options = parser.parse_args()
    documents: dict[str, Any] = {}
    text = ""
    for cell in options.cell or CELLS:
        title, arguments = CELLS[cell]
        documents[cell] = compare(
            "--recipes", options.recipes, "--steps", options.steps, *arguments
        )
        text += f"Cell {cell}: {title}, gpt:6x512x8, 1 x 64 bytes per rank and step.\n\n"
        text += rows_of(documents[cell]) + "\n"
    write(HERE, documents, text)


def rows_of(document: dict[str, Any]) -> str:
    """The table of one cell; ratios are against the recipe named in the column's head."""
    runs = document["runs"]
    steps = {run["recipe"]: run["step_s"]["median"] for run in runs}
    rows = []
    for run in runs:
        step_s, nic = run["step_s"], run["nic_bytes_per_rank"]
        ledger = run["across_bytes_per_rank"]
        rows.append(
            [
                f"`{run['recipe']}`",
                f"{step_s['median']:.2f} ({step_s['min']:.2f} to {step_s['max']:.2f})",
                *(f"{steps[base] / step_s['median']:.2f}" for base in bases(steps)),
                f"{ledger / 1e6:.1f}",
                "-" if nic is None else f"{100 * (nic / ledger - 1):+.1f} %",
                f"{run['bits_per_parameter']:.2f}",
                f"{run['validation_loss']:.4f}",
            ]
        )
    header = ["recipe", "step s (min to max)", *(f"x `{base}`" for base in bases(steps))]
    header += ["MB across per rank", "interface vs ledger", "bits / parameter", "held-out loss"]
    return table(header, rows)


def bases(steps: dict[str, float]) -> list[str]:
    return [name for name in ("zero3:compute=fp32", "zero3") if name in steps]


if __name__ == "__main__":
    main()
