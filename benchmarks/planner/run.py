"""Claim: after ``thinwire calibrate`` the planner foretells what a step of each recipe takes.

python benchmarks/planner/run.py              # all comparisons that are not in cells.json yet
python benchmarks/planner/run.py --only 2     # one of them, again
python -m thinwire validate --cells benchmarks/planner/cells.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from record import compare, conditions  # noqa: E402 - the folder above is not a package

RECIPES = ("zero3:compute=fp32", "zero3", "qsdp", "zeropp", "thin", "ddp")
# hosts of one rank, link, model: every world, link and model
COMPARISONS = (
    (2, "200mbit", "gpt:4x256x4"),
    (3, "50mbit", "gpt:2x128x4"),
    (4, "1gbit", "gpt:2x512x8"),
    (2, None, "gpt:4x256x4"),
    (4, "200mbit", "gpt:4x256x4"),
    (2, "1gbit", "gpt:2x512x8"),
)
SEQ, MICRO_BATCH = 128, 2
CELLS = HERE / "cells.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", type=int, choices=range(len(COMPARISONS)))
    parser.add_argument("--steps", default="10")
    parser.add_argument("--tolerance", default="0.3")
    options = parser.parse_args()
    found = read_cells()
    for index, (hosts, link, model) in enumerate(COMPARISONS):
        name = f"{hosts}-{link or 'unshaped'}-{model.removeprefix('gpt:')}"
        if options.only not in (None, index) or (options.only is None and name in found):
            continue
        hardware = HERE / "hardware" / f"{hosts}-{link or 'unshaped'}.toml"
        network = ("--hosts", str(hosts), *(() if link is None else ("--link", link)))
        calibrate(*network, "--output", str(hardware), "--tolerance", options.tolerance)
        document = compare(
            *network,
            *("--model", model, "--recipes", ",".join(RECIPES), "--steps", options.steps),
            *("--seq", str(SEQ), "--micro-batch", str(MICRO_BATCH), "--cluster", str(hardware)),
        )
        found[name] = {
            "hosts": hosts,
            "ranks_per_host": 1,
            "model": model,
            "seq": SEQ,
            "micro_batch": MICRO_BATCH,
            "hardware": str(hardware.relative_to(HERE)),
            "link": document["link"],
            "runs": [
                {"recipe": run["recipe"], "step_s": run["step_s"]} for run in document["runs"]
            ],
        }
        write_cells(found)
        for run in document["runs"]:
            measured, planned = run["step_s"]["median"], run["predicted_step_s"]
            print(f"{run['recipe']:22} {measured:.3f} s, planned {planned:.3f} s", flush=True)


def calibrate(*arguments: str) -> None:
    print("$ thinwire calibrate", *arguments, flush=True)
    subprocess.run([sys.executable, "-m", "thinwire", "calibrate", *arguments], check=True)


def read_cells() -> dict[str, Any]:
    if not CELLS.exists():
        return {}
    cells: dict[str, Any] = json.loads(CELLS.read_text())["comparisons"]
    return cells


def write_cells(found: dict[str, Any]) -> None:
    document = {"conditions": conditions(), "comparisons": found}
    temporary = CELLS.with_suffix(".tmp")
    temporary.write_text(json.dumps(document, indent=1) + "\n")
    temporary.replace(CELLS)


if __name__ == "__main__":
    main()
