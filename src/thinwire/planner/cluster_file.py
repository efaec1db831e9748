"""Reads a cluster file, whose numbers take the place of the presets'.

It has a table for each part, every one optional. ``preset`` names where to start, the other keys
replace the preset's numbers, and ``source`` says where those come from:

    [cluster]
    hosts = 4
    ranks_per_host = 1

    [device]
    preset = "cpu"
    flop_per_s = { fp32 = 41e9, bf16 = 12e9 }
    source = "calibrated: 2 cores, torch 2.13"

    [link]
    bit_per_s = 2e8
    latency_s = 1e-4
    protocol = "tcp"
    source = "calibrated"

    [backend]
    preset = "gloo"

    [host]
    memory_bytes = 24e9
    source = "given"
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from thinwire.errors import ConfigError
from thinwire.planner.hardware import OVERHEADS
from thinwire.planner.hardware_file import backend_names, device_names, protocol_names
from thinwire.planner.source import SOURCES, kind_of
from thinwire.planner.value_form import check_at_most, check_form
from thinwire.quoting import quoted
from thinwire.table_file import errors_in, file_label, read_toml

__all__ = ["KIND", "read_cluster_file"]

KIND = "cluster file"
ADVICE = "give a hardware file, as thinwire calibrate writes it, or leave it out for the presets"
COUNTS = ("hosts", "ranks_per_host")
# what the tables hold besides numbers of the hardware, each by a value of its form
WORDS: dict[str, dict[str, Any]] = {
    "cluster": {"hosts": 1, "ranks_per_host": 1, "shaped": False},
    "device": {"preset": "cpu", "source": "given"},
    "link": {"protocol": "tcp", "source": "given"},
    "backend": {"preset": "gloo", "source": "given"},
    "host": {"source": "given"},
}
# words that name something
NAMES: dict[tuple[str, str], Callable[[], tuple[str, ...]]] = {
    ("device", "preset"): device_names,
    ("backend", "preset"): backend_names,
    ("link", "protocol"): protocol_names,
}
MEASURED_TOGETHER = ("unit_s", "parameter_s", "step_s")


def read_cluster_file(path: Path) -> dict[str, dict[str, Any]]:
    """The tables of a cluster file; numbers of the hardware are looked at when it is loaded.

    Raises:
        ConfigError: the file cannot be read, is no TOML, says nothing, or has a table, a key, a
            name or a count that cannot be.
    """
    tables = read_toml(path, KIND, ADVICE)
    with errors_in(file_label(KIND, path)):
        if not tables:
            raise ConfigError(f"says nothing; {ADVICE}")
        for part, table in tables.items():
            _check_table(part, table)
        counts = [tables.get("cluster", {}).get(count, 1) for count in COUNTS]
        check_at_most("cluster: hosts times ranks_per_host", math.prod(counts))
        _check_age(tables.get("device", {}))
    return tables


def _check_table(part: str, table: Any) -> None:
    """Raise unless a part is known, and what its words say can be."""
    if part not in WORDS:
        raise ConfigError(f"{quoted(part)} is not one of its tables: {', '.join(WORDS)}")
    if not isinstance(table, dict):
        raise ConfigError(
            f"{part} = {quoted(table)} must be one table: write [{part}] once, and its keys below"
        )
    for key, value in table.items():
        if key in WORDS[part]:
            _check_word(part, key, value)
        elif part == "cluster":
            raise ConfigError(f"cluster: {quoted(key)} is not one of {', '.join(WORDS[part])}")


def _check_word(part: str, key: str, value: Any) -> None:
    """Raise unless a word is a count, a source, or a name that is known."""
    owner = f"{part}: {key}"
    if key in COUNTS:
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{owner} = {quoted(value)} is not a whole number above zero")
        check_at_most(owner, value)
        return
    check_form(owner, value, WORDS[part][key])
    if key == "source" and kind_of(value) not in SOURCES:
        raise ConfigError(f"{owner} = {quoted(value)} must begin with one of {', '.join(SOURCES)}")
    if (part, key) in NAMES:
        known = NAMES[part, key]()
        if value not in known:
            raise ConfigError(f"{owner} {quoted(value)}: not known; use one of {', '.join(known)}")


def _check_age(device: Mapping[str, Any]) -> None:
    """Raise if a calibration of an older version lacks what is now measured together.

    A table that was written by hand may stand alone; :func:`check_costs` says what it lacks itself.
    """
    given = {name: device[name] for name in MEASURED_TOGETHER if name in device}
    if not given or kind_of(device.get("source", "given")) != "calibrated":
        return  # a single rank takes no such steps
    missing = [name for name in MEASURED_TOGETHER if name not in given]
    missing += [
        f"{name}: {kind}"
        for name, table in given.items()
        if isinstance(table, dict)  # whatever has another form is refused later
        for kind in OVERHEADS
        if kind not in table
    ]
    if missing:
        raise ConfigError(
            f"device: its source says calibrated, but {', '.join(missing)} are measured with the "
            f"rest and missing: calibrate again, or write source = 'given' for numbers of your own"
        )
