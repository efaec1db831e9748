"""Claim: where the planner names a break-even bandwidth, the winner changes around it.

python benchmarks/planner/break_even.py
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
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
        model: what is trained.
        plain, compressed: the recipes. Codecs pay over any link that this machine can shape, but
            for low rank, whose factors take long enough.
    """

    hosts: str
    link: str
    model: str
    plain: str
    compressed: str

    @property
    def network(self) -> tuple[str, str]:
        """Hosts and link of the calibration."""
        return self.hosts, self.link


CASES = (
    Case("2", "1gbit", "gpt:2x512x8", "ddp", "ddp:grads=lowrank=128"),
    Case("2", "1gbit", "gpt:2x256x4", "ddp", "ddp:grads=lowrank=64"),
    Case("2", "1gbit", "gpt:2x256x4", "ddp", "ddp:grads=lowrank=100"),
    Case("3", "500mbit", "gpt:2x256x4", "ddp", "ddp:grads=lowrank=100"),
    Case("3", "500mbit", "gpt:2x512x8", "ddp", "ddp:grads=lowrank=128"),
    Case("2", "1gbit", "gpt:12x64x2", "zero3", "zeropp:group_bytes=0"),
)
FASTEST_BIT_PER_S = 4e9  # that the lab shapes on a few cores, whatever else they do


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", default="30")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tolerance", default="0.5")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="thinwire-") as folder:
        hardware = calibrated(Path(folder), options.tolerance)
        found = [measure(case, hardware[case.network], options) for case in CASES]
    write(HERE, found, summary(found), "break-even")


def calibrated(folder: Path, tolerance: str) -> dict[tuple[str, str], Path]:
    """A hardware file for every network of the cases."""
    files: dict[tuple[str, str], Path] = {}
    for hosts, link in dict.fromkeys(case.network for case in CASES):
        files[hosts, link] = folder / f"{hosts}-{link}.toml"
        network = ("--hosts", hosts, "--link", link, "--tolerance", tolerance)
        thinwire("calibrate", *network, "--output", str(files[hosts, link]))
    return files


def measure(case: Case, hardware: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Ask the plan, and train on both sides of its answer."""
    recipes = f"{case.plain},{case.compressed}"
    training = ("--model", case.model, "--seq", SEQ, "--micro-batch", MICRO_BATCH)
    asked = ("plan", *training, "--recipes", recipes, "--cluster", str(hardware), "--json")
    plan = json.loads(thinwire(*asked))
    named = {name: plan[name] for name in ("break_even_bit_per_s", "break_even_margin")}
    rate = named["break_even_bit_per_s"]
    result: dict[str, Any] = {"case": dataclasses.asdict(case), **named}
    if rate is None or (1 + MARGIN) * rate > FASTEST_BIT_PER_S:
        return result
    for side, factor, expected in (
        ("below", 1 - MARGIN, case.compressed),
        ("above", 1 + MARGIN, case.plain),
    ):
        network = ("--hosts", case.hosts, "--link", f"{factor * rate / 1e3:.0f}kbit")
        runs: dict[str, list[float]] = {}
        for _ in range(options.rounds):
            document = compare(*network, "--recipes", recipes, "--steps", options.steps, *training)
            for run in document["runs"]:
                runs.setdefault(run["recipe"], []).append(run["step_s"]["median"])
        step_s = {name: statistics.median(seconds) for name, seconds in runs.items()}
        winner = min(step_s, key=lambda name: step_s[name])
        result[side] = {
            "bit_per_s": factor * rate,
            "step_s": step_s,
            "rounds_step_s": runs,
            "winner": winner,
            "as_planned": winner == expected,
        }
        print(result[side], flush=True)
    return result


def summary(found: list[dict[str, Any]]) -> str:
    """A row for each side of each break-even."""
    rows = []
    for result in found:
        case, rate = result["case"], result["break_even_bit_per_s"]
        setting = [f"{case['hosts']} hosts, `{case['model']}`"]
        if "above" not in result:
            named_rate = "none" if rate is None else f"{rate / 1e6:.0f}, not shaped here"
            rows.append(
                [
                    *setting,
                    named_rate,
                    "",
                    "",
                    f"`{case['plain']}`",
                    f"`{case['compressed']}`",
                    "",
                    "",
                ]
            )
            continue
        for side in ("below", "above"):
            entry = result[side]
            rows.append(
                [
                    *setting,
                    f"{rate / 1e6:.0f}",
                    f"{result['break_even_margin']:.1%}",
                    f"{entry['bit_per_s'] / 1e6:.0f}",
                    *(f"`{name}` {1e3 * s:.1f}" for name, s in entry["step_s"].items()),
                    f"`{entry['winner']}`",
                    "yes" if entry["as_planned"] else "no",
                ]
            )
    header = ["case", "break-even, Mbit/s", "margin", "measured at", "ms", "ms", "faster"]
    text = f"Steps {MARGIN:.0%} below and above the break-even that the plan names. The margin is "
    text += "the difference that it foretells there; where it is below 5 % the plan says that the "
    text += "break-even is not sharp.\n\n"
    return text + table([*header, "as planned"], rows)


def thinwire(*arguments: str) -> str:
    print("$ thinwire", *arguments, flush=True)
    command = [sys.executable, "-m", "thinwire", *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    main()
