"""Settings that the planner's tests share: the lab's machines, and a cluster of accelerators."""

from __future__ import annotations

from thinwire.planner.group import Parallelism
from thinwire.planner.hardware import Cluster
from thinwire.planner.hardware_file import load_backend, load_device, load_host, load_link
from thinwire.planner.models import parse_model
from thinwire.planner.setting import Setting

__all__ = ["accelerators", "cluster_of", "lab_setting"]


def cluster_of(
    device: str, *, hosts: int, ranks: int, bit_per_s: float, backend: str, protocol: str = "ideal"
) -> Cluster:
    """A cluster of presets."""
    loaded = load_device(device)
    return Cluster(
        hosts=hosts,
        ranks_per_host=ranks,
        device=loaded,
        host=load_host(loaded.kind),
        link=load_link(protocol, {"bit_per_s": bit_per_s, "latency_s": 20e-6}),
        backend=load_backend(backend),
    )


def lab_setting(
    model: str,
    *,
    hosts: int,
    ranks: int,
    tokens: int,
    micro_batch: int = 1,
    accumulate: int = 1,
    backend: str = "gloo",
) -> Setting:
    """CPU ranks over a thin link, as in the lab."""
    return Setting(
        workload=parse_model(model, tokens=tokens),
        cluster=cluster_of("cpu", hosts=hosts, ranks=ranks, bit_per_s=200e6, backend=backend),
        micro_batch=micro_batch,
        accumulate=accumulate,
    )


def accelerators(
    model: str = "gpt:24x2048x16",
    *,
    hosts: int = 8,
    ranks: int = 4,
    bit_per_s: float = 100e9,
    accumulate: int = 1,
    parallelism: Parallelism | None = None,
) -> Setting:
    """A100s over a fast link."""
    return Setting(
        workload=parse_model(model, tokens=2048),
        cluster=cluster_of(
            "a100-40gb", hosts=hosts, ranks=ranks, bit_per_s=bit_per_s, backend="nccl"
        ),
        accumulate=accumulate,
        parallelism=parallelism or Parallelism(),
    )
