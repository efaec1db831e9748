"""Claim: encoding costs no more than a copy of its input, or the gain of a thin wire is lost again.

    python benchmarks/kernels/run.py

Every figure is the median over rounds of (time of the call / time of a copy of the fp32 input in
the same round), on one core: a machine's speed changes from second to second, the ratio does not.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from thinwire.formats import parse_format
from thinwire.wire.key import Key
from thinwire.wire.registry import codec_for, reference_codec

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from record import table, write  # noqa: E402 - the folder above is not a package

FORMATS = "int8/128,int8/256,int4/128,int4/2048,int4/128+stochastic,int8/256+stochastic,"
FORMATS += "int4/128+asym,int8/256+shift,int4/128+bf16scale,bf16"
CPU = torch.device("cpu")


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def ratios(actions: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """For every action, the median ratio of its time to the copy's in the same round."""
    found: dict[str, list[float]] = {name: [] for name in actions}
    for action in actions.values():
        action()  # compiles, and touches every page
    for _ in range(rounds):
        copy_s = seconds(actions["copy"])
        for name, action in actions.items():
            found[name].append(seconds(action) / copy_s)
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--formats", default=FORMATS)
    parser.add_argument("--numel", type=int, default=1 << 24)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    x, y = torch.randn(options.numel), torch.empty(options.numel)
    small = options.numel // 16  # the reference in eager torch is slow: a slice of the input
    figures: dict[str, dict[str, float]] = {}
    rows = []
    for text in options.formats.split(","):
        fmt = parse_format(text)
        codec, plain = codec_for(fmt, CPU), reference_codec(fmt)
        payload = torch.empty(fmt.wire_bytes(options.numel), dtype=torch.uint8)
        part = torch.empty(fmt.wire_bytes(small), dtype=torch.uint8)
        found = ratios(
            {
                "copy": lambda: y.copy_(x),
                "encode": lambda: codec.encode_into(x, payload, Key()),  # noqa: B023
                "decode": lambda: codec.decode_into(payload, y),  # noqa: B023
                "sum of 4": lambda: codec.decode_sum_into([payload] * 4, y),  # noqa: B023
            },
            options.rounds,
        )
        found["sum of 4"] /= 4  # per input element
        reference = ratios(
            {
                "copy": lambda: y[:small].copy_(x[:small]),
                "encode": lambda: plain.encode_into(x[:small], part, Key()),  # noqa: B023
            },
            3,
        )
        figures[text] = {**found, "reference encode": reference["encode"]}
        names = ("encode", "decode", "sum of 4", "reference encode")
        rows.append([f"`{text}`", *(f"{figures[text][name]:.2f}" for name in names)])
        print(rows[-1], flush=True)
    header = ["format", "encode", "decode", "decode and sum of 4, per element", "eager reference"]
    text = (
        f"Time relative to a copy of the fp32 input, {options.numel} elements, one core, median of "
        f"{options.rounds} rounds.\n\n"
    )
    write(HERE, figures, text + table(header, rows))


if __name__ == "__main__":
    main()
