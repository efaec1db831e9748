"""Rivals in the lab: the same hosts, link, model and text, and another system's communication.

DeepSpeed gets a virtual environment of its own, made on first use: it must not decide which
versions thinwire runs with.
"""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from thinwire.errors import RankError
from thinwire.lab import check_link, launch, measure_link, open_network
from thinwire.quantities import parse_bit_rate

__all__ = ["measure_rivals"]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RANK = HERE / "step" / "rival_rank.py"
# how long a rival may take for all of its steps before it counts as not running
TIMEOUT_S = 900.0
TITLES = {
    "compute only": "no communication (compute alone)",
    "ddp_bf16": "DDP, PyTorch's bf16 hook",
    "powersgd": "DDP, PyTorch's PowerSGD hook, rank 4",
    "deepspeed": "DeepSpeed ZeRO-3, bf16",
}


def measure_rivals(names: Sequence[str], arguments: dict[str, str]) -> dict[str, dict[str, Any]]:
    """What every rival took, by its title; ``{"failed": words}`` for one that does not run.

    Args:
        names: keys of ``rival_rank.RIVALS``.
        arguments: ``hosts``, ``ranks``, ``link`` of the network and ``model``, ``seq``,
            ``micro-batch``, ``steps`` of the training.
    """
    rate = parse_bit_rate(arguments["link"])
    training = [
        part
        for name in ("model", "seq", "micro-batch", "steps")
        for part in (f"--{name}", arguments[name])
    ]
    found: dict[str, dict[str, Any]] = {}
    with open_network(int(arguments["hosts"]), int(arguments["ranks"]), rate) as network:
        rates = measure_link(network)
        if rates is None or network.notice:
            sys.exit(network.notice or "a link needs two hosts")
        check_link(rate, rates)
        for name in names:
            lines: list[str] = []
            python = deepspeed_python() if name == "deepspeed" else Path(sys.executable)
            print(f"rival: {TITLES[name]}", flush=True)
            try:
                launch(
                    network,
                    [str(python), str(RANK), name, *training],
                    environment={
                        "TORCH_CPP_LOG_LEVEL": "ERROR",
                        "PYTHONPATH": str(ROOT / "src"),
                        "DS_ACCELERATOR": "cpu",
                    },
                    on_line=lambda rank, line: lines.append(line) if rank == 0 else None,  # noqa: B023
                    timeout_s=TIMEOUT_S,
                )
                # DeepSpeed writes its log to the same stream
                found[TITLES[name]] = json.loads(next(x for x in lines if x.startswith("{")))
            except RankError as error:
                found[TITLES[name]] = {"failed": str(error).splitlines()[0]}
            print(found[TITLES[name]], flush=True)
    return found


def deepspeed_python() -> Path:
    """The interpreter of DeepSpeed's environment, which is made when it is not there."""
    folder = HERE / ".venv-deepspeed"
    python, done = folder / "bin" / "python", folder / "installed"
    if not done.exists():
        print("installing DeepSpeed in an environment of its own", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        constraints = ROOT / "constraints.txt"
        (pin,) = (x for x in constraints.read_text().splitlines() if x.startswith("torch=="))
        pip = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, pin], check=True)
        needs = ("numpy", "numba", "setuptools", "wheel", "ninja", "psutil", "py-cpuinfo")
        subprocess.run([*pip, "--constraint", str(constraints), *needs], check=True)
        # its set-up asks the torch that is there; an isolated build would fetch another
        subprocess.run([*pip, "--no-build-isolation", "deepspeed"], check=True)
        done.touch()
    return python
