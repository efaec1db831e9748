"""How sure a plan's numbers are, and where it goes beyond what was measured."""

from __future__ import annotations

from thinwire.planner.hardware import Cluster
from thinwire.planner.source import least_sure
from thinwire.quantities import format_bit_rate, format_numbered

__all__ = ["beyond_scope", "confidence", "least_sure_by_term"]

# a shaped link reaches its rate within its bursts and headers
SAME_RATE = 0.1


def confidence(cluster: Cluster) -> str:
    """The least sure source behind each term, as a sentence."""
    words = ", ".join(f"{term} {kind}" for term, kind in least_sure_by_term(cluster).items())
    return f"The least sure number behind each term: {words}. Calibrating replaces them."


def least_sure_by_term(cluster: Cluster) -> dict[str, str]:
    """The kind of the least sure source behind each term of a plan that has one."""
    device, link, backend = cluster.device.sources, cluster.link.sources, cluster.backend.sources
    compute = ["flop_per_s", "matmul_efficiency", "memory_bytes_per_s", "memory_efficiency"]
    if cluster.world > 1:  # a rank alone is not wrapped
        compute += ["unit_s", "parameter_s", "step_s"]
    network = []
    if cluster.hosts > 1:
        network += [link[name] for name in ("bit_per_s", "latency_s", "efficiency")]
        # shares that were measured stand in for those of the preset
        measured = ("ring_share", "rounds_share") if cluster.backend.shares else ()
        network += [text for name, text in backend.items() if name not in measured]
    if cluster.ranks_per_host > 1:
        rates = ("within_bytes_per_s", "within_efficiency", "within_latency_s")
        network += [device[name] for name in rates]
    terms = {
        "compute": [device[name] for name in compute],
        "network": network,
        "codecs": [device["codec"], device["low_rank"]],
        "memory overhead": [device["slack"], device["context_bytes"]],
    }
    return {term: least_sure(texts) for term, texts in terms.items() if texts}


def beyond_scope(cluster: Cluster) -> list[str]:
    """A sentence if the cluster is not what its numbers were calibrated on."""
    scope = cluster.scope
    if scope is None:
        return []
    asked, measured = [], []
    if (scope.hosts, scope.ranks_per_host) != (cluster.hosts, cluster.ranks_per_host):
        measured.append(_ranks(scope.hosts, scope.ranks_per_host))
        asked.append(_ranks(cluster.hosts, cluster.ranks_per_host))
    rate, measured_rate = cluster.link.bit_per_s, scope.bit_per_s
    if cluster.hosts > 1 and measured_rate and abs(rate / measured_rate - 1) > SAME_RATE:
        kind = {None: "a link", True: "a shaped link", False: "an unshaped link"}
        measured.append(f"{kind[scope.is_shaped]} of {format_bit_rate(measured_rate)}")
        asked.append(f"one of {format_bit_rate(rate)}")
    if not asked:
        return []
    return [
        f"The hardware file was calibrated with {' and '.join(measured)}, and holds for no other: "
        f"what it says of {' and '.join(asked)} is a guess until you calibrate there."
    ]


def _ranks(hosts: int, ranks_per_host: int) -> str:
    return f"{format_numbered(hosts, 'host')} of {format_numbered(ranks_per_host, 'rank')}"
