"""The tables of a cluster file, fitted to samples, and how they are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thinwire.lab import Layout
from thinwire.planner.hardware import Cluster
from thinwire.planner.hardware_file import load_backend, load_device, load_host, load_link
from thinwire.train.calibration.codecs import VERBS
from thinwire.train.calibration.fit import (
    COPY_MOVED_BYTES,
    Residual,
    device_table,
    host_table,
)
from thinwire.train.calibration.fit_steps import fit_steps
from thinwire.train.calibration.fit_wires import fit_wires
from thinwire.train.calibration.sample import Sample

__all__ = ["Hardware", "fit_hardware", "format_tables"]

# of the preset's kinds of links: what is calibrated has nothing to do with frames
PROTOCOL = "ideal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What a calibration found.

    Attributes:
        tables: of a cluster file, without sources.
        residuals: of the fits.
    """

    tables: dict[str, dict[str, Any]]
    residuals: tuple[Residual, ...]

    def figures(self) -> dict[str, float]:
        """The rates that repeats must agree on, by name."""
        device = self.tables["device"]
        copied = device["memory_bytes_per_s"] * device["memory_efficiency"][-1][1]
        figures = {
            "copy, bytes/s": copied,
            "AdamW, parameters/s": device["adam_parameters_per_s"],
        }
        for dtype, rate in device["flop_per_s"].items():
            figures[f"{dtype} products, FLOP/s"] = rate
        for verb in VERBS:
            for kind, copies in device["codec"][f"{verb}_copies"].items():
                # elements, not copies: the copy's own scatter is not the codec's
                figures[f"{verb} {kind}, elements/s"] = copied / COPY_MOVED_BYTES / copies
        figures["disk, bytes/s"] = self.tables["host"]["disk_bytes_per_s"]
        if "host_bytes_per_s" in device:
            figures["to and from the host, bytes/s"] = device["host_bytes_per_s"]
        for way, curve in self.tables.get("backend", {}).get("shares", {}).items():
            figures[f"{way}, share of the link"] = curve[-1][1]
        return figures


def fit_hardware(
    samples: Sequence[Sample],
    layout: Layout,
    *,
    preset: str = "cpu",
    link_bit_per_s: float | None,
) -> Hardware:
    """Fit everything that a cluster file holds.

    Args:
        samples: of the slowest rank.
        layout: hosts and ranks.
        preset: of the device, for what is not measured.
        link_bit_per_s: as measured; ``None``: not shaped.
    """
    device, residuals = device_table(samples, preset)
    tables: dict[str, dict[str, Any]] = {
        "cluster": {
            "hosts": layout.hosts,
            "ranks_per_host": layout.ranks_per_host,
            "shaped": link_bit_per_s is not None,
        },
        "device": device,
        "host": host_table(samples, layout.ranks_per_host, preset),
    }
    backend = "gloo" if load_device(preset).kind == "cpu" else "nccl"
    if layout.ranks_per_host > 1:
        within = fit_wires(
            samples,
            "within",
            backend=backend,
            size=layout.ranks_per_host,
            per_host=1,
            link_bytes_per_s=None,
        )
        device["within_bytes_per_s"] = within.bytes_per_s
        device["within_latency_s"] = within.latency_s
        tables["backend"] = within.backend_table()
        residuals.append(within.residual)
    if layout.hosts > 1:
        across = fit_wires(
            samples,
            "across",
            backend=backend,
            size=layout.world_size,
            per_host=layout.ranks_per_host,
            link_bytes_per_s=None if link_bit_per_s is None else link_bit_per_s / 8,
        )
        tables["backend"] = across.backend_table()
        tables["link"] = {
            "bit_per_s": 8 * across.bytes_per_s,
            "latency_s": across.latency_s,
            "protocol": PROTOCOL,
        }
        residuals.append(across.residual)
    if layout.world_size > 1:
        overheads, residual = fit_steps(samples, _cluster(tables))
        device |= overheads
        residuals.append(residual)
    return Hardware(tables=tables, residuals=tuple(residuals))


def _cluster(tables: Mapping[str, dict[str, Any]]) -> Cluster:
    """The cluster that the tables make, as the planner will read them."""
    calibrated = {"source": "calibrated"}
    link = tables.get("link", {"bit_per_s": 1e9, "latency_s": 1e-4, "protocol": PROTOCOL})
    device = load_device(tables["device"]["preset"], {**tables["device"], **calibrated})
    numbers = {key: value for key, value in link.items() if key != "protocol"}
    return Cluster(
        hosts=tables["cluster"]["hosts"],
        ranks_per_host=tables["cluster"]["ranks_per_host"],
        device=device,
        host=load_host(device.kind, {**tables["host"], **calibrated}),
        link=load_link(PROTOCOL, {**numbers, **calibrated}),
        backend=load_backend(tables["backend"]["preset"], {**tables["backend"], **calibrated}),
    )


def format_tables(tables: Mapping[str, Mapping[str, Any]], *, source: str) -> str:
    """A cluster file (TOML) whose numbers have this source."""
    lines = ["# What thinwire calibrate measured; read by --cluster.\n"]
    for name, table in tables.items():
        lines.append(f"[{name}]")
        lines += [f"{key} = {_toml(value)}" for key, value in table.items()]
        if name != "cluster":
            lines.append(f"source = {_toml(source)}")
        lines.append("")
    return "\n".join(lines)


def _toml(value: Any) -> str:
    """A value in TOML; the tables hold nothing else than these."""
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, float):
        return f"{value:.6g}" if "e" in f"{value:.6g}" else repr(float(f"{value:.6g}"))
    return str(value)
