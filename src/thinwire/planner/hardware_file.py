"""Reads hardware: presets by name, and a cluster file whose numbers take precedence.

A cluster file has a table for each part, every one optional. ``preset`` names where to start, the
other keys replace the preset's numbers, and ``source`` says where those come from:

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

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from thinwire.errors import ConfigError
from thinwire.file_kind import read_file_text
from thinwire.planner.curve import Curve
from thinwire.planner.hardware import OVERHEADS, WAYS, Backend, CodecRates, Device, Host, Link
from thinwire.planner.source import kind_of
from thinwire.planner.value_form import check_form

__all__ = [
    "device_names",
    "load_backend",
    "load_device",
    "load_host",
    "load_link",
    "read_cluster_file",
]

FIXED = ("name", "kind", "protocol", "sources")
# what a cluster file's tables hold besides numbers, each by a value of its form
CLUSTER: dict[str, Any] = {"hosts": 1, "ranks_per_host": 1, "shaped": False}
WORDS: dict[str, dict[str, Any]] = {
    "cluster": CLUSTER,
    "device": {"preset": "cpu", "source": "given"},
    "link": {"protocol": "tcp", "source": "given"},
    "backend": {"preset": "gloo", "source": "given"},
    "host": {"source": "given"},
}
MEASURED_TOGETHER = ("unit_s", "parameter_s", "step_s")
# shares that a calibration gives, one curve for each way of sending
SHARES = {way: [[1.0, 1.0]] for way in WAYS}
CALLS_S = dict.fromkeys(WAYS, 0.0)


def device_names() -> tuple[str, ...]:
    """The names of the device presets."""
    return tuple(name for name in _presets("devices") if name != "defaults")


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
        raise ConfigError(f"device {name!r}: not known; use one of {', '.join(device_names())}")
    preset = presets[name]
    defaults = presets["defaults"][preset.get("kind", "cpu" if name == "cpu" else "accelerator")]
    unknown = {"memory_bytes": None, "adam_parameters_per_s": None}
    table = {**unknown, **defaults, **preset, "name": name}
    table["sources"] = {**defaults["sources"], **preset["sources"]}
    table = _changed(f"device {name}", table, *changes)
    for curve in ("memory_efficiency", "matmul_efficiency"):
        table[curve] = _curve(f"device {name}: {curve}", table[curve])
    codec = _completed(f"device {name}: codec", table["codec"], {**defaults, **preset}["codec"])
    return Device(**{**table, "codec": CodecRates(**codec)})


def _completed(owner: str, codec: Mapping[str, Any], preset: Mapping[str, Any]) -> dict[str, Any]:
    """A table of codecs in which the preset's kinds fill in those that were not measured."""
    for verb, copies in codec.items():
        if verb not in preset:
            raise ConfigError(f"{owner}: {verb!r} is not one of {', '.join(preset)}")
        if not isinstance(copies, dict):
            raise ConfigError(
                f"{owner}: {verb} = {copies!r} must be a table of kinds, such as {{ int = 0.5 }}; "
                "a file of an older version is to be calibrated again"
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
        raise ConfigError(f"backend {name!r}: not known; use one of {', '.join(presets)}")
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
        raise ConfigError(f"protocol {protocol!r}: not known; use one of {', '.join(presets)}")
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


def read_cluster_file(path: Path) -> dict[str, dict[str, Any]]:
    """The tables of a cluster file.

    Raises:
        ConfigError: the file cannot be read, is no TOML, or has a table that is not known.
    """
    try:
        tables = tomllib.loads(read_file_text(path))
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"cluster file {path}: cannot be read ({reason})") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"cluster file {path}: not a TOML file ({error})") from error
    for part, table in tables.items():
        if part not in WORDS or not isinstance(table, dict):
            raise ConfigError(
                f"cluster file {path}: {part!r} is not one of its tables: {', '.join(WORDS)}"
            )
        for key, value in table.items():
            if key in WORDS[part]:
                check_form(f"cluster file {path}: {part}: {key}", value, WORDS[part][key])
            elif part == "cluster":
                raise ConfigError(
                    f"cluster file {path}: cluster: {key!r} is not one of {', '.join(CLUSTER)}"
                )
    _check_age(path, tables.get("device", {}))
    return tables


def _check_age(path: Path, device: Mapping[str, Any]) -> None:
    """Raise if a calibration of an older version lacks what is now measured together."""
    missing = [name for name in MEASURED_TOGETHER if name not in device]
    if len(missing) == len(MEASURED_TOGETHER):
        missing.clear()  # of a single rank, which takes no such steps
    else:
        given = [device.get(name) for name in MEASURED_TOGETHER]
        # whatever has another form is refused later
        tables = [table for table in given if isinstance(table, dict)]
        missing += [kind for kind in OVERHEADS if not all(kind in table for table in tables)]
    if missing and kind_of(device.get("source", "given")) == "calibrated":
        raise ConfigError(
            f"cluster file {path}: device: was calibrated by an older version, without "
            f"{' and '.join(missing)}; calibrate again"
        )


def _changed(owner: str, table: Mapping[str, Any], *changes: Mapping[str, Any]) -> dict[str, Any]:
    """A table with some entries replaced, and the sources of those."""
    table = dict(table)
    for change in changes:
        words = ("source",) if owner in {"link", "host"} else ("preset", "source")
        entries = {key: value for key, value in change.items() if key not in words}
        for key, value in entries.items():
            if key not in table or key in FIXED:
                known = ", ".join(name for name in table if name not in FIXED)
                raise ConfigError(f"{owner}: {key!r} is not one of {known}")
            check_form(f"{owner}: {key}", value, table[key])
        sources = dict.fromkeys(entries, change.get("source", "given"))
        table = {**table, **entries, "sources": {**table["sources"], **sources}}
    return table


def _curve(owner: str, points: Any) -> Curve:
    try:
        return Curve(tuple((float(size), float(share)) for size, share in points))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{owner} must be a list of [size, share] pairs: {error}") from error


@cache
def _presets(name: str) -> dict[str, Any]:
    path = Path(__file__).parent / "presets" / f"{name}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))
