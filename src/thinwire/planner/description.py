"""What a plan was made for and where its numbers come from: for programs, and for a page."""

from __future__ import annotations

from typing import Any

from thinwire.planner.hardware import Cluster
from thinwire.planner.setting import Setting
from thinwire.planner.trust import least_sure_by_term

__all__ = ["describe", "number_sources"]


def describe(setting: Setting) -> dict[str, Any]:
    """The part of ``thinwire plan --json`` that says what was planned.

    ``link`` is ``null`` where all ranks share a host: nothing crosses it, whatever was said of it.
    """
    workload, cluster, link = setting.workload, setting.cluster, setting.cluster.link
    return {
        "model": {
            "name": workload.name,
            "parameters": workload.num_parameters,
            "active_parameters": round(workload.active_parameters),
            "tokens": workload.tokens,
            "assumptions": list(workload.assumptions),
        },
        "cluster": {
            "hosts": cluster.hosts,
            "ranks_per_host": cluster.ranks_per_host,
            "device": cluster.device.name,
            "link": None
            if cluster.hosts == 1
            else {
                "bit_per_s": link.bit_per_s,
                "latency_s": link.latency_s,
                "loss": link.loss,
                "protocol": link.protocol,
            },
        },
        "confidence": least_sure_by_term(cluster),
        "sources": number_sources(cluster),
    }


def number_sources(cluster: Cluster) -> dict[str, dict[str, str]]:
    """Where each number of a cluster comes from, by part and attribute."""
    return {
        "device": dict(cluster.device.sources),
        "link": dict(cluster.link.sources),
        "backend": dict(cluster.backend.sources),
        "host": dict(cluster.host.sources),
    }
