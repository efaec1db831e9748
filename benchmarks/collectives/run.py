"""Claim: our exchange keeps at least 0.9 of a thin wire filled with payload.

python benchmarks/collectives/run.py --hosts 2,3,4 --link 200mbit
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from thinwire.lab import check_link, launch, measure_link, open_network
from thinwire.quantities import parse_bit_rate

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from record import table, write  # noqa: E402 - the folder above is not a package


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", default="2,3,4")
    parser.add_argument("--link", default="200mbit")
    parser.add_argument("--sizes", default="1e5,4e5,1.6e6")
    options = parser.parse_args()
    rate = parse_bit_rate(options.link)
    figures: dict[str, list[dict[str, Any]]] = {}
    text = f"Share of a {options.link} link that carries payload; one rank per host, gloo.\n\n"
    for hosts in options.hosts.split(","):
        lines: list[dict[str, Any]] = []
        with open_network(int(hosts), 1, rate) as network:
            rates = measure_link(network)
            if rates is None or network.notice:
                sys.exit(network.notice or "a link needs two hosts")
            check_link(rate, rates)
            program = [sys.executable, str(HERE / "rank.py"), str(rate), options.sizes]
            launch(
                network,
                program,
                on_line=lambda rank, line: lines.append(json.loads(line)) if rank == 0 else None,  # noqa: B023
                timeout_s=170,
            )
        figures[hosts] = lines
        sizes = sorted({line["payload_bytes"] for line in lines})
        header = [f"{hosts} hosts", *(f"{size / 1e3:.0f} KB to each peer" for size in sizes)]
        by_way: dict[str, list[str]] = {}
        for line in lines:
            by_way.setdefault(line["way"], []).append(f"{line['share']:.2f}")
        text += table([*header, "interface / payload"], _rows(by_way, lines)) + "\n"
    write(HERE, figures, text)


def _rows(by_way: dict[str, list[str]], lines: list[dict[str, Any]]) -> list[list[str]]:
    largest = {line["way"]: line["interface"] for line in lines}  # the last, largest size
    return [[way, *cells, f"{largest[way]:.3f}"] for way, cells in by_way.items()]


if __name__ == "__main__":
    main()
