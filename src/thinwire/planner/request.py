"""From what a user says to a setting: options over a cluster file over presets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thinwire.errors import ConfigError
from thinwire.planner.cluster_file import KIND, read_cluster_file
from thinwire.planner.group import Parallelism
from thinwire.planner.hardware import Cluster, Device
from thinwire.planner.hardware_file import load_backend, load_device, load_host, load_link
from thinwire.planner.models import parse_model
from thinwire.planner.scope import Scope
from thinwire.planner.setting import Setting
from thinwire.planner.source import kind_of
from thinwire.quantities import parse_bit_rate, parse_byte_rate, parse_bytes, parse_duration
from thinwire.quoting import quoted
from thinwire.table_file import errors_in, file_label

__all__ = ["ClusterRequest", "PlanRequest"]

DEFAULT_LATENCY_S = {"accelerator": 20e-6, "cpu": 100e-6}
DEFAULT_BACKEND = {"accelerator": "nccl", "cpu": "gloo"}
DEFAULT_PROTOCOL = {"accelerator": "rdma", "cpu": "tcp"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRequest:
    """What a user says about a cluster; ``None``: nothing, so the file or a preset decides.

    Attributes:
        hosts: number of hosts.
        ranks: on each host.
        device: preset, such as ``"a100-40gb"``.
        link: rate of each host's link, such as ``"100gbit"``.
        within: rate between two devices of a host, such as ``"300GB/s"``.
        latency: one way across hosts, such as ``"20us"``.
        loss: share of packets lost.
        protocol: across hosts.
        memory: of each device, such as ``"40GB"``.
        host_memory: of each host.
        file: a cluster file.
    """

    hosts: int | None = None
    ranks: int | None = None
    device: str | None = None
    link: str | None = None
    within: str | None = None
    latency: str | None = None
    loss: float | None = None
    protocol: str | None = None
    memory: str | None = None
    host_memory: str | None = None
    file: Path | None = None

    def cluster(self) -> Cluster:
        """The cluster.

        Raises:
            ConfigError: something is missing, not known or out of range.
        """
        if self.file is None:
            return self._made({})
        tables = read_cluster_file(self.file)
        # the file alone first, so that its own faults are told from those of the options
        ungiven = None if "bit_per_s" in tables.get("link", {}) else "1gbit"
        with errors_in(file_label(KIND, self.file)):
            ClusterRequest(link=ungiven)._made(tables)
        return self._made(tables)

    def _made(self, tables: Mapping[str, Mapping[str, Any]]) -> Cluster:
        """The cluster, with these tables of a file."""
        counts = tables.get("cluster", {})
        hosts = _count("hosts", self.hosts, counts)
        ranks = _count("ranks_per_host", self.ranks, counts)
        device = self._device(tables.get("device", {}))
        memory = {} if self.host_memory is None else {"memory_bytes": parse_bytes(self.host_memory)}
        backend = tables.get("backend", {})
        return Cluster(
            hosts=hosts,
            ranks_per_host=ranks,
            device=device,
            host=load_host(device.kind, tables.get("host", {}), memory),
            link=self._link(tables.get("link", {}), device.kind, hosts),
            backend=load_backend(backend.get("preset", DEFAULT_BACKEND[device.kind]), backend),
            scope=_scope(tables),
        )

    def _device(self, table: Mapping[str, Any]) -> Device:
        given: dict[str, Any] = {}
        if self.memory is not None:
            given["memory_bytes"] = parse_bytes(self.memory)
        if self.within is not None:
            given["within_bytes_per_s"] = parse_byte_rate(self.within)
        name = table.get("preset", "cpu")
        if self.device is not None and self.device != name:
            return load_device(self.device, given)  # the file speaks of another device
        return load_device(name, table, given)

    def _link(self, table: Mapping[str, Any], kind: str, hosts: int) -> Any:
        given: dict[str, Any] = {}
        if self.link is not None:
            given["bit_per_s"] = parse_bit_rate(self.link)
        elif "bit_per_s" not in table:
            if hosts > 1:
                raise ConfigError(
                    f"{hosts} hosts need a link between them: give --link, such as --link 10gbit"
                )
            given["bit_per_s"] = 1e9  # nothing crosses it
        if self.latency is not None:
            given["latency_s"] = parse_duration(self.latency)
        default = {} if "latency_s" in table else {"latency_s": DEFAULT_LATENCY_S[kind]}
        if self.loss is not None:
            given["loss"] = self.loss
        loss = self.loss if self.loss is not None else table.get("loss", 0.0)
        lossy = "tcp" if loss else DEFAULT_PROTOCOL[kind]
        protocol = self.protocol or table.get("protocol", lossy)
        return load_link(protocol, {**default, "source": "assumed"}, table, given)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What a user asks to be planned.

    Attributes:
        model: as :func:`thinwire.planner.models.parse_model` takes it.
        cluster: what is said about the cluster.
        seq: tokens in a sequence; ``None``: 2048, or as many as the model has positions.
        micro_batch: sequences per data-parallel rank at once.
        accumulate: micro-batches per optimizer step.
        tp: tensor-parallel ranks.
        pp: pipeline stages.
    """

    model: str
    cluster: ClusterRequest
    seq: int | None = None
    micro_batch: int = 1
    accumulate: int = 1
    tp: int = 1
    pp: int = 1

    def setting(self) -> Setting:
        """The setting.

        Raises:
            ConfigError: something is missing, not known or out of range.
        """
        return Setting(
            workload=parse_model(self.model, tokens=self.seq),
            cluster=self.cluster.cluster(),
            micro_batch=self.micro_batch,
            accumulate=self.accumulate,
            parallelism=Parallelism(tp=self.tp, pp=self.pp),
        )


def _scope(tables: Mapping[str, Mapping[str, Any]]) -> Scope | None:
    """What a cluster file was calibrated on, if one of its tables was calibrated."""
    counts, link = tables.get("cluster", {}), tables.get("link", {})
    if not any(_is_calibrated(table) for table in tables.values()) or "hosts" not in counts:
        return None
    return Scope(
        hosts=_count("hosts", None, counts),
        ranks_per_host=_count("ranks_per_host", None, counts),
        bit_per_s=link.get("bit_per_s") if _is_calibrated(link) else None,
        is_shaped=counts.get("shaped"),
    )


def _is_calibrated(table: Mapping[str, Any]) -> bool:
    return kind_of(table.get("source", "given")) == "calibrated"


def _count(key: str, given: int | None, table: Mapping[str, Any]) -> int:
    value = given if given is not None else table.get(key, 1)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"{key} = {quoted(value)} is not a whole number")
    return value
