"""Claim: over a thin wire a step is several times faster than with stock FSDP2.

python benchmarks/step/run.py                    # all cells, with all rivals
python benchmarks/step/run.py --cell A --no-rivals
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from record import compare, table, write  # noqa: E402 - the folder above is not a package
from rivals import TITLES, measure_rivals  # noqa: E402 - the same

MODEL, SEQ, LINK = "gpt:6x512x8", "64", "200mbit"
SHARDED = "zero3:compute=fp32,zero3,zero3:compute=fp32:weights=bf16,qsdp,"
SHARDED += "zeropp:replica=none,zeropp,sdp4bit,thin"
ONE_LEVEL = f"{SHARDED},thin:grads_within=none"  # beside it, what two levels are worth
REPLICATED = "ddp,ddp:grads=int8/128,ddp:grads=int4/128:feedback=true,ddp_powersgd"
ALONE = TITLES["compute only"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One network and one size of step.

    Attributes:
        hosts, ranks: of the network.
        micro_batch: sequences per rank and step.
        steps: of every run.
        recipes: what is compared, as ``thinwire compare --recipes`` takes it.
        rivals: other systems in the same network.
        bases: the rows that the others are held against.
    """

    hosts: str
    ranks: str
    micro_batch: str
    steps: str
    recipes: str
    rivals: tuple[str, ...]
    bases: tuple[str, ...]

    @property
    def title(self) -> str:
        """The cell in words."""
        return (
            f"{self.hosts} hosts x {self.ranks}, {LINK}, {MODEL}, {self.micro_batch} x {SEQ} bytes "
            f"per rank and step, {self.steps} steps"
        )


FSDP_BASES = ("zero3", TITLES["deepspeed"])
CELLS = {
    "A": Cell("4", "1", "1", "12", SHARDED, ("compute only", "deepspeed"), FSDP_BASES),
    "B": Cell(
        "2",
        "2",
        "1",
        "12",
        ONE_LEVEL,
        ("compute only", "deepspeed"),
        FSDP_BASES,
    ),
    "C": Cell("4", "1", "16", "8", "zero3,zeropp,thin", ("compute only",), ("zero3",)),
    "D": Cell(
        *("4", "1", "1", "40", REPLICATED),
        ("ddp_bf16", "powersgd"),
        ("ddp", TITLES["powersgd"]),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cell", choices=CELLS, action="append")
    parser.add_argument("--recipes", help="instead of the cell's own")
    parser.add_argument("--steps", help="instead of the cell's own")
    parser.add_argument("--no-rivals", action="store_true")
    parser.add_argument("--name", default="results", help="of the files that are written")
    options = parser.parse_args()
    documents: dict[str, Any] = {}
    text = ""
    for name in options.cell or CELLS:
        given = {key: getattr(options, key) for key in ("recipes", "steps")}
        cell = replace(CELLS[name], **{key: text for key, text in given.items() if text})
        documents[name] = measure(cell, options.no_rivals)
        text += f"Cell {name}: {cell.title}.\n\n{rows_of(documents[name], cell.bases)}\n"
    write(HERE, documents, text, options.name)


def measure(cell: Cell, no_rivals: bool) -> dict[str, Any]:
    """The document of ``thinwire compare``, with an entry for rivals."""
    arguments = {
        "hosts": cell.hosts,
        "ranks": cell.ranks,
        "link": LINK,
        "model": MODEL,
        "seq": SEQ,
        "micro-batch": cell.micro_batch,
        "steps": cell.steps,
    }
    document = compare(
        *("--recipes", cell.recipes),
        *(x for name, value in arguments.items() for x in (f"--{name}", value)),
    )
    document["rivals"] = {} if no_rivals else measure_rivals(cell.rivals, arguments)
    return document


def rows_of(document: dict[str, Any], bases: tuple[str, ...]) -> str:
    """The table of one cell; ratios are against the rows named in the columns' heads."""
    runs = {f"`{run['recipe']}`": run for run in document["runs"]}
    runs |= document["rivals"]
    steps = {
        name.strip("`"): run["step_s"]["median"] for name, run in runs.items() if "step_s" in run
    }
    known = [base for base in bases if base in steps]
    floor = Floor.of(document, steps.get(ALONE))
    rows = []
    for name, run in runs.items():
        if "failed" in run:
            rows.append([name, f"does not run: {run['failed']}"])
            continue
        step_s = run["step_s"]
        rows.append(
            [
                name,
                f"{step_s['median']:.2f} ({step_s['min']:.2f} to {step_s['max']:.2f})",
                *(f"{steps[base] / step_s['median']:.2f}" for base in known),
                *floor.cells(run),
                f"{run['validation_loss']:.4f}",
            ]
        )
    header = ["recipe or rival", "step s (min to max)", *(f"x {base}" for base in known)]
    header += [*floor.header, "held-out loss"]
    return table(header, [[*row, *[""] * (len(header) - len(row))] for row in rows])


@dataclass(frozen=True, slots=True)
class Floor:
    """What a step takes when nothing overlaps: compute alone, and the bytes at the link's rate.

    Attributes:
        alone_s: compute alone, or ``None`` where it was not measured.
        bytes_per_s: of a host's link, as measured.
        ranks: that share it.
        parameters: of the model.
    """

    alone_s: float | None
    bytes_per_s: float
    ranks: int
    parameters: int

    @classmethod
    def of(cls, document: dict[str, Any], alone_s: float | None) -> Floor:
        """From a document of ``thinwire compare``."""
        return cls(
            alone_s,
            document["link"]["measured_bit_per_s"] / 8,
            document["world"] // document["hosts"],
            document["parameters"],
        )

    header = (
        "MB across per rank",
        "interface vs ledger",
        "bits / parameter",
        "step / (compute alone + bytes / rate)",
    )

    def cells(self, run: dict[str, Any]) -> list[str]:
        """Bytes and the ratio to the floor, of a recipe or of a rival."""
        nic_bytes = run["nic_bytes_per_rank"]
        sent_bytes = run.get("across_bytes_per_rank", nic_bytes)
        versus = "-"
        if nic_bytes and "across_bytes_per_rank" in run and sent_bytes:
            versus = f"{100 * (nic_bytes / sent_bytes - 1):+.1f} %"
        ratio = "-"
        if self.alone_s is not None:
            wire_s = self.ranks * sent_bytes / self.bytes_per_s
            ratio = f"{run['step_s']['median'] / (self.alone_s + wire_s):.2f}"
        bits = 8 * sent_bytes / self.parameters
        return [f"{sent_bytes / 1e6:.1f}", versus, f"{bits:.2f}", ratio]


if __name__ == "__main__":
    main()
