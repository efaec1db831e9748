"""How every benchmark writes down what it measured: a JSON file and a Markdown table beside it."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["compare", "conditions", "table", "write"]

ROOT = Path(__file__).resolve().parent.parent


def conditions() -> dict[str, str]:
    """What a reader needs to know to place the figures."""
    return {
        "date": datetime.date.today().isoformat(),
        "command": " ".join(["python", _from_root(sys.argv[0]), *sys.argv[1:]]),
        "cpu": _cpu_model(),
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("torch", "numba", "thinwire")},
    }


def _from_root(script: str) -> str:
    """A script of this repository by its place there, wherever that is on this machine."""
    path = Path(script).resolve()
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def compare(*arguments: str) -> dict[str, Any]:
    """The JSON document of ``thinwire compare`` with these arguments; progress is shown."""
    command = [sys.executable, "-m", "thinwire", "compare", *arguments, "--json"]
    print("$ thinwire compare", *arguments, flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in (header, *rows)]
    lines.insert(1, "|" + "---|" * len(header))
    return "\n".join(lines) + "\n"


def write(folder: Path, figures: Any, text: str, name: str = "results") -> None:
    """Write ``NAME.json`` and ``NAME.md`` into the benchmark's folder, each at once."""
    facts = conditions()
    listed = "\n".join(f"- {name}: {value}" for name, value in facts.items())
    _replace(
        folder / f"{name}.json", json.dumps({"conditions": facts, "figures": figures}, indent=1)
    )
    _replace(folder / f"{name}.md", f"{text}\n{listed}\n")
    print(text)


def _replace(path: Path, text: str) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    os.replace(temporary, path)
