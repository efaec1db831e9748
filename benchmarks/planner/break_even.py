"""Claim: where the planner names a break-even bandwidth, the winner changes around it.

python benchmarks/planner/break_even.py
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from record import compare, table, write  # noqa: E402 - the folder above is not a package

SEQ, MICRO_BATCH = "64", "1"
MARGIN = 0.25


@dataclass(frozen=True, slots=True)
class Case:
    """Two recipes of which one is faster over thin wires and the other over thick ones.

    Attributes:
        hosts: of one rank.
        link: over which the machine is calibrated; near the break-even, found in a first run.
        model: so small that Python's share of a step, which compression adds to, is as large as
            what it saves on a wire that this machine can shape.
        plain, compressed: the recipes.
    """

    hosts: str
    link: str
    model: str
    plain: str
    compressed: str


CASES = (
    Case("2", "500mbit", "gpt:2x64x2", "zero3", "qsdp"),
    Case("2", "800mbit", "gpt:2x64x2", "zero3", "zeropp"),
    Case("3", "300mbit", "gpt:2x64x2", "zero3", "qsdp"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", default="80")
    parser.add_argument("--tolerance", default="0.5")
    options = parser.parse_args()
    found = [measure(case, options.steps, options.tolerance) for case in CASES]
    rows = []
    for case, result in zip(CASES, found, strict=True):
        for side in ("below", "above"):
            entry = result[side]
            rows.append(
                [
                    f"{case.hosts} hosts, {case.model}",
                    f"{result['break_even_bit_per_s'] / 1e6:.0f}",
                    f"{entry['bit_per_s'] / 1e6:.0f}",
                    *(f"`{name}` {1e3 * s:.1f}" for name, s in entry["step_s"].items()),
                    f"`{entry['winner']}`",
                    "yes" if entry["as_planned"] else "no",
                ]
            )
    header = [
        "case",
        "break-even, Mbit/s",
        "measured at, Mbit/s",
        "ms",
        "ms",
        "faster",
        "as planned",
    ]
    text = f"Steps {MARGIN:.0%} below and above the break-even that the plan names.\n\n"
    write(HERE, found, text + table(header, rows), "break-even")


def measure(case: Case, steps: str, tolerance: str) -> dict[str, Any]:
    """Calibrate, ask the plan, and train on both sides of its answer."""
    recipes = f"{case.plain},{case.compressed}"
    training = ("--model", case.model, "--seq", SEQ, "--micro-batch", MICRO_BATCH)
    with tempfile.TemporaryDirectory(prefix="thinwire-") as folder:
        hardware = str(Path(folder) / "hardware.toml")
        network = ("--hosts", case.hosts, "--link", case.link)
        thinwire("calibrate", *network, "--output", hardware, "--tolerance", tolerance)
        plan = json.loads(
            thinwire("plan", *training, "--recipes", recipes, "--cluster", hardware, "--json")
        )
    rate = plan["break_even_bit_per_s"]
    result: dict[str, Any] = {"case": vars_of(case), "break_even_bit_per_s": rate}
    for side, factor, expected in (
        ("below", 1 - MARGIN, case.compressed),
        ("above", 1 + MARGIN, case.plain),
    ):
        link = f"{factor * rate / 1e6:.0f}mbit"
        document = compare(
            *("--hosts", case.hosts, "--link", link, "--recipes", recipes, "--steps", steps),
            *training,
        )
        step_s = {run["recipe"]: run["step_s"]["median"] for run in document["runs"]}
        winner = min(step_s, key=lambda name: step_s[name])
        result[side] = {
            "bit_per_s": factor * rate,
            "step_s": step_s,
            "winner": winner,
            "as_planned": winner == expected,
        }
        print(result[side], flush=True)
    return result


def vars_of(case: Case) -> dict[str, str]:
    return {name: getattr(case, name) for name in Case.__dataclass_fields__}


def thinwire(*arguments: str) -> str:
    print("$ thinwire", *arguments, flush=True)
    command = [sys.executable, "-m", "thinwire", *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    main()
