"""Loads hardware: presets by name, some of whose numbers are replaced.

Replacements come as tables: from a cluster file (``thinwire.planner.cluster_file``), and from
options of the command line. Later ones take precedence, and ``source`` says where theirs come from.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from thinwire.errors import ConfigError
from thinwire.planner.curve import Curve
from thinwire.planner.hardware import WAYS, Backend, CodecRates, Device, Host, Link
from thinwire.planner.value_form import check_form, is_number
from thinwire.quoting import quoted
from thinwire.table_file import errors_in

__all__ = [
    "backend_names",
    "device_names",
    "load_backend",
    "load_device",
    "load_host",
    "load_link",
    "protocol_names",
]

FIXED = ("name", "kind", "protocol", "sources")
# what a table may say besides numbers, by the first word of its owner; others name a preset
WORDS = {"link": ("protocol", "source"), "host": ("source",)}
# shares that a calibration gives, one curve for each way of sending
SHARES = {way: [[1.0, 1.0]] for way in WAYS}
CALLS_S = dict.fromkeys(WAYS, 0.0)


def device_names() -> tuple[str, ...]:
    """The names of the device presets."""
    return tuple(name for name in _presets("devices") if name != "defaults")


def backend_names() -> tuple[str, ...]:
    """The names of the backend presets."""
    return tuple(_presets("networks")["backends"])


def protocol_names() -> tuple[str, ...]:
    """The names of the protocols of links."""
    return tuple(_presets("networks")["protocols"])


def load_device(name: str, *changes: Mapping[str, Any]) -> Device:
    """A device preset, with some of its numbers replaced.

    Args:
        name: of the preset.
        changes: numbers by attribute, and their ``source``; later ones take precedence.

    Raises:
        ConfigError: no such preset or attribute, or a number out of range.
    """
    presets = _presets("devices")
    if name not in presets or name == "defaults":
        raise ConfigError(
            f"device {quoted(name)}: not known; use one of {', '.join(device_names())}"
        )
    preset = presets[name]
    defaults = presets["defaults"][preset.get("kind", "cpu" if name == "cpu" else "accelerator")]
    unknown = {"memory_bytes": None, "adam_parameters_per_s": None}
    table = {**unknown, **defaults, **preset, "name": name}
    table["sources"] = {**defaults["sources"], **preset["sources"]}
    table = _changed(f"device {name}", table, *changes)
    for curve in ("memory_efficiency", "matmul_efficiency"):
        table[curve] = _curve(f"device {name}: {curve}", table[curve])
    codec = _completed(f"device {name}: codec", table["codec"], {**defaults, **preset}["codec"])
    with errors_in(f"device {name}"):
        rates = CodecRates(**codec)
    return Device(**{**table, "codec": rates})


def _completed(owner: str, codec: Mapping[str, Any], preset: Mapping[str, Any]) -> dict[str, Any]:
    """A table of codecs in which the preset's kinds fill in those that were not measured."""
    for verb, copies in codec.items():
        if verb not in preset:
            raise ConfigError(f"{owner}: {quoted(verb)} is not one of {', '.join(preset)}")
        if not isinstance(copies, dict):
            raise ConfigError(
                f"{owner}: {verb} = {quoted(copies)} must be a table of kinds, such as "
                "{ int = 0.5 }; a file of an older version is to be calibrated again"
            )
    return {verb: {**copies, **codec.get(verb, {})} for verb, copies in preset.items()}


def load_host(kind: str, *changes: Mapping[str, Any]) -> Host:
    """The host of a kind of device, with some of its numbers replaced.

    Args:
        kind: ``"accelerator"`` or ``"cpu"``.
        changes: numbers by attribute, and their ``source``; later ones take precedence.

    Raises:
        ConfigError: no such attribute, or a number out of range.
    """
    table = {"memory_bytes": None, **_presets("networks")["hosts"][kind]}
    return Host(**_changed("host", table, *changes))


def load_backend(name: str, *changes: Mapping[str, Any]) -> Backend:
    """A backend preset, with some of its numbers replaced.

    Args:
        name: ``"gloo"`` or ``"nccl"``.
        changes: numbers by attribute, and their ``source``; later ones take precedence.

    Raises:
        ConfigError: no such preset or attribute, or a number out of range.
    """
    presets = _presets("networks")["backends"]
    if name not in presets:
        raise ConfigError(f"backend {quoted(name)}: not known; use one of {', '.join(presets)}")
    table = {**presets[name], "name": name, "shares": SHARES, "calls_s": CALLS_S}
    table = _changed(f"backend {name}", table, *changes)
    for key, form in (("shares", SHARES), ("calls_s", CALLS_S)):
        if table[key] is form:
            table[key] = {}
    shares = {
        way: _curve(f"backend {name}: shares of {way}", points)
        for way, points in table["shares"].items()
    }
    return Backend(**{**table, "shares": shares})


def load_link(protocol: str, *numbers: Mapping[str, Any]) -> Link:
    """A link of a protocol.

    Args:
        protocol: ``"ideal"``, ``"tcp"``, ``"rdma"`` or ``"grpc"``.
        numbers: ``bit_per_s`` and ``latency_s``, and whatever else is known, with their ``source``;
            later ones take precedence.

    Raises:
        ConfigError: no such protocol or attribute, or a number missing or out of range.
    """
    presets = _presets("networks")["protocols"]
    if protocol not in presets:
        known = ", ".join(presets)
        raise ConfigError(f"protocol {quoted(protocol)}: not known; use one of {known}")
    for needed in ("bit_per_s", "latency_s"):
        if not any(needed in table for table in numbers):
            raise ConfigError(f"link: {needed} is missing; give it")
    preset = presets[protocol]
    table = {
        "bit_per_s": None,
        "latency_s": None,
        "loss": 0.0,
        "protocol": protocol,
        "efficiency": preset["efficiency"],
        "sources": {"efficiency": preset["source"], "loss": "given: none"},
    }
    table = _changed("link", table, *numbers)
    return Link(**{**table, "efficiency": _curve("link: efficiency", table["efficiency"])})


def _changed(owner: str, table: Mapping[str, Any], *changes: Mapping[str, Any]) -> dict[str, Any]:
    """A table with some entries replaced, and the sources of those."""
    table = dict(table)
    for change in changes:
        words = WORDS.get(owner, ("preset", "source"))
        entries = {key: value for key, value in change.items() if key not in words}
        for key, value in entries.items():
            if key not in table or key in FIXED:
                known = [name for name in table if name not in FIXED]
                raise ConfigError(
                    f"{owner}: {quoted(key)} is not one of {', '.join((*known, *words))}"
                )
            check_form(f"{owner}: {key}", value, table[key])
        sources = dict.fromkeys(entries, change.get("source", "given"))
        table = {**table, **entries, "sources": {**table["sources"], **sources}}
    return table


def _curve(owner: str, points: Any) -> Curve:
    for place, point in enumerate(points, start=1):
        if not isinstance(point, list) or len(point) != 2 or not all(map(is_number, point)):
            raise ConfigError(
                f"{owner}: entry {place} is {quoted(point)}, but must be a pair [size, share]"
            )
    with errors_in(owner):
        return Curve(tuple((float(size), float(share)) for size, share in points))


@cache
def _presets(name: str) -> dict[str, Any]:
    path = Path(__file__).parent / "presets" / f"{name}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))
