"""Claim: encoding costs no more than a copy of its input, or the gain of a thin wire is lost again.

    python benchmarks/kernels/run.py

Every figure is the median over rounds of (time of the call / time of a copy of the fp32 input right
before it), on one core. bitsandbytes and torchao run in an environment of their own, made on first
use, beside a copy of the same size.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from thinwire.formats import parse_format
from thinwire.wire.codec import Codec
from thinwire.wire.key import Key
from thinwire.wire.registry import codec_for, reference_codec

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent))

from kernels.timing import Actions, peak_extra_bytes, ratios  # noqa: E402 - no package
from record import table, write  # noqa: E402

CPU = torch.device("cpu")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

# Format, and the largest cost that the project allows itself: encode, decode, sum of four.
GOALS: dict[str, tuple[float | None, float | None, float | None]] = {
    "int8/128": (0.9, 0.7, 0.5),
    "int8/256": (0.9, 0.7, 0.5),
    "int4/128": (0.9, 1.0, 0.5),
    "int4/2048": (0.9, 1.0, 0.5),
    "int4/8": (None, None, None),
    "int4/32": (None, None, None),
    "int4/128+bf16scale": (0.9, 1.0, 0.5),
    "int4/128+stochastic": (1.2, 1.0, 0.5),
    "int8/256+stochastic": (1.2, 0.7, 0.5),
    "int4/128+asym": (1.0, None, None),
    "int8/256+shift": (0.9, 0.7, 0.5),
    "int4/128+hadamard": (1.6, None, None),
    "int3/128": (1.2, None, None),
    "log4/128": (1.5, None, None),
    "log6/128": (1.5, None, None),
    "log7/128": (1.5, None, None),
    "log8/128": (1.5, None, None),
    "log4/128+stochastic": (3.0, None, None),
    "log8/128+stochastic": (3.0, None, None),
    "sign/128": (0.7, None, None),
    "e4m3/128": (None, None, None),
    "e5m2/128": (None, None, None),
    "e4m3/128+stochastic": (None, None, None),
    "topk=0.01": (6.0, None, None),
    "topk=0.1": (None, None, None),
    "bf16": (None, None, None),
    "fp16": (None, None, None),
    "int4/128+clip=95": (None, None, None),
    "int4/128+asym+clip=95": (None, None, None),
    "int4/128+levels": (None, None, None),
}
# The same per element where the input has half the bytes: no copy in float32 is made of it.
HALVES = ("int8/128", "int4/128", "int4/128+stochastic", "sign/128", "e4m3/128", "topk=0.01")


def measure(codec: Codec, x: Tensor, out: Tensor, rounds: int) -> dict[str, float]:
    """Ratios to a copy of float32, and the growth of memory, of one codec."""
    total, source = torch.empty(x.numel()), torch.ones(x.numel())
    payload = torch.zeros(codec.format.wire_bytes(x.numel()), dtype=torch.uint8)
    actions: Actions = {
        "encode": lambda: codec.encode_into(x, payload, Key()),
        "decode": lambda: codec.decode_into(payload, out),
        "sum": lambda: codec.decode_sum_into([payload] * 4, total),
    }
    found = ratios(actions, lambda: total.copy_(source), rounds)
    found["sum"] /= 4  # per input element
    found["extra_bytes"] = peak_extra_bytes(lambda: [action() for action in actions.values()])
    return found


def own_figures(numel: int, rounds: int) -> dict[str, dict[str, float]]:
    """Every format with float32 input, and some with 16-bit input; ``format, dtype`` is the key."""
    found: dict[str, dict[str, float]] = {}
    for name, dtype in DTYPES.items():
        x = torch.randn(numel).to(dtype)
        for text in GOALS if name == "fp32" else HALVES:
            codec = codec_for(parse_format(text), CPU)
            is_slow = codec is reference_codec(codec.format)
            found[f"{text}, {name}"] = measure(
                codec, x, torch.empty_like(x), 3 if is_slow else rounds
            )
            print(text, name, found[f"{text}, {name}"], flush=True)
    return found


def reference_figures(numel: int) -> dict[str, float]:
    """Encoding by the plain torch reference, for the formats whose kernels replace it."""
    x = torch.randn(numel)
    return {
        text: measure(reference_codec(parse_format(text)), x, torch.empty_like(x), 3)["encode"]
        for text in ("int8/128", "int4/128", "int4/128+stochastic", "sign/128", "e4m3/128")
    }


def rival_figures(numel: int, rounds: int) -> dict[str, Any]:
    """The document of other_libraries.py."""
    command = [str(rivals_python()), str(HERE / "other_libraries.py"), str(numel), str(rounds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return document


def rivals_python() -> Path:
    """The interpreter of the rivals' environment, which is made when it is not there."""
    folder = HERE / ".venv-rivals"
    python, done = folder / "bin" / "python", folder / "installed"
    if not done.exists():
        print("installing bitsandbytes and torchao in an environment of their own", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        lines = (ROOT / "constraints.txt").read_text().splitlines()
        (pin,) = (line for line in lines if line.startswith("torch=="))
        pip = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, pin, "numpy", "packaging"], check=True)
        # without what they depend on: it would replace torch
        subprocess.run([*pip, "--no-deps", "bitsandbytes", "torchao"], check=True)
        done.touch()
    return python


def own_rows(figures: dict[str, dict[str, float]]) -> list[list[str]]:
    """One row a format and dtype; a figure beyond its goal is followed by the goal."""
    rows = []
    for key, found in figures.items():
        text, dtype = key.split(", ")
        goals = GOALS[text] if dtype == "fp32" else (None, None, None)
        cells = [
            f"{found[name]:.2f}" + (f" (goal {goal})" if goal and found[name] > goal else "")
            for name, goal in zip(("encode", "decode", "sum"), goals, strict=True)
        ]
        rows.append([f"`{text}`", dtype, *cells, f"{found['extra_bytes'] / 2**20:.1f}"])
    return rows


def rival_rows(figures: dict[str, Any]) -> list[list[str]]:
    """One row a rival; of one that did not run, the reason."""
    rows = []
    for name, found in figures.items():
        if "failed" in found:
            rows.append([name, found["failed"], "", ""])
            continue
        megabytes = f"{found['extra_bytes'] / 2**20:.1f}"
        rows.append([name, f"{found['encode']:.2f}", f"{found['decode']:.2f}", megabytes])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--numel", type=int, default=1 << 24)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--no-rivals", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    own = own_figures(options.numel, options.rounds)
    reference = reference_figures(options.numel // 16)
    text = (
        f"Processor time relative to a copy of the fp32 input, {options.numel} elements, one core, "
        f"median of {options.rounds} rounds; MiB is the growth of memory.\n\n"
    )
    header = ["format", "input", "encode", "decode", "decode and sum of 4, per element", "MiB"]
    text += table(header, own_rows(own))
    listed = ", ".join(f"`{name}` {ratio:.1f}" for name, ratio in reference.items())
    text += f"\nEncoding by the reference in eager PyTorch: {listed}.\n"
    figures: dict[str, Any] = {"own": own, "reference encode": reference}
    if not options.no_rivals:
        rivals = rival_figures(options.numel, options.rounds)
        figures["rivals"] = rivals
        text += "\n" + table(["rival", "encode", "decode", "MiB"], rival_rows(rivals["figures"]))
        versions = ", ".join(f"{name} {version}" for name, version in rivals["versions"].items())
        text += f"\nRivals: {versions}. They allocate their results: MiB contains those.\n"
    write(HERE, figures, text)


if __name__ == "__main__":
    main()
