"""From samples of collectives to a link and a backend."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thinwire.planner.hardware_file import load_backend
from thinwire.train.calibration.fit import Residual, least_squares
from thinwire.train.calibration.sample import Sample
from thinwire.train.calibration.wires import RINGS, ROUNDS

__all__ = ["Wires", "fit_wires"]

# passes of a unit round the ring: an all-reduce is a reduction and a gather
PASSES = {"all_gather": 1, "all_reduce": 2, "exchange": 1, "gather": 1}
LEAST_SHARE = 1e-3
LEAST_LATENCY_S = 1e-6  # a fitted 0 says that calls and messages cannot be told apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Wires:
    """What collectives cost within a host or across hosts.

    Attributes:
        backend: name of its preset.
        bytes_per_s: of the link: as measured by itself, or the most that a collective reached.
        call_s: of one call, on the average of all ways.
        calls_s: of one call, by way.
        latency_s: of one message.
        shares: of the rate, by way and by bytes of a message, as ``[backend]`` takes them.
        residual: of the fit.
    """

    backend: str
    bytes_per_s: float
    call_s: float
    calls_s: dict[str, float]
    latency_s: float
    shares: dict[str, list[list[float]]]
    residual: Residual

    def backend_table(self) -> dict[str, Any]:
        """The entries of ``[backend]`` in a cluster file."""
        return {
            "preset": self.backend,
            "call_s": self.call_s,
            "calls_s": self.calls_s,
            "message_s": 0.0,  # in the latency
            "shares": self.shares,
        }


def fit_wires(
    samples: Sequence[Sample],
    case: str,
    *,
    backend: str,
    size: int,
    per_host: int,
    link_bytes_per_s: float | None,
) -> Wires:
    """Latency and calls from the smallest messages, then the rate that is left by size.

    A message's latency is what ways that send more messages take longer by; what is left of the
    smallest messages is a call's.

    Args:
        samples: of collectives, all sizes and ways.
        case: ``"across"`` or ``"within"``.
        backend: name of its preset.
        size: ranks that take part.
        per_host: of them on each host; 1 for ``"within"``, where no link is shared.
        link_bytes_per_s: of the host's link; ``None``: not shaped.
    """
    passes = {**PASSES, "reduce_scatter": load_backend(backend).reduce_scatter_passes}
    mine = [s for s in samples if s.case == case and s.figure in (*RINGS, *ROUNDS)]
    smallest = min(sample.size for sample in mine)
    first = [sample for sample in mine if sample.size == smallest]
    in_turn = {name: passes[name] * (size - 1) for name in (*RINGS, *ROUNDS)}
    latency_s, calls_s = _starts({s.figure: s.median_s for s in first}, in_turn)

    def started_s(name: str) -> float:
        return calls_s[_way(name)] + latency_s * in_turn[name]

    rates: dict[str, dict[float, list[float]]] = {}
    for sample in mine:
        if sample.size == smallest:
            continue
        messages = in_turn[sample.figure]
        if sample.figure in ROUNDS:
            messages = per_host * (size - per_host)
        # a message that took no longer than an empty one says nothing of the rate
        moving_s = max(sample.median_s - started_s(sample.figure), sample.median_s / 10)
        rate = messages * sample.size / moving_s
        rates.setdefault(_way(sample.figure), {}).setdefault(sample.size, []).append(rate)
    top, shares = _shares(rates, link_bytes_per_s)
    pairs = [(started_s(s.figure), s.median_s) for s in first]
    return Wires(
        backend=backend,
        bytes_per_s=top,
        call_s=statistics.fmean(calls_s.values()),
        calls_s=calls_s,
        latency_s=latency_s,
        shares=shares,
        residual=Residual.of(f"smallest messages {case}", pairs),
    )


def _shares(
    rates: Mapping[str, Mapping[float, Sequence[float]]], link_bytes_per_s: float | None
) -> tuple[float, dict[str, list[list[float]]]]:
    """The highest rate, bytes/s, and the share of it that each way gets, by size of message."""
    by_size = {
        way: {size: statistics.geometric_mean(found) for size, found in sorted(sizes.items())}
        for way, sizes in rates.items()
    }
    top = link_bytes_per_s or max(rate for sizes in by_size.values() for rate in sizes.values())
    return top, {
        way: [[size, min(1.0, max(LEAST_SHARE, rate / top))] for size, rate in sizes.items()]
        for way, sizes in by_size.items()
    }


def _starts(
    smallest_s: Mapping[str, float], in_turn: Mapping[str, int]
) -> tuple[float, dict[str, float]]:
    """Seconds of a message and, by way, of a call, from calls that move next to nothing.

    Args:
        smallest_s: by what was timed.
        in_turn: messages that follow each other in such a call.
    """
    rows = [(1.0, in_turn[name]) for name in smallest_s]
    _, fitted_s = least_squares(rows, list(smallest_s.values()))
    # no call takes less than its messages
    shortest_s = min(seconds / in_turn[name] for name, seconds in smallest_s.items())
    latency_s = max(LEAST_LATENCY_S, min(fitted_s, shortest_s))
    found: dict[str, list[float]] = {}
    for name, seconds in smallest_s.items():
        found.setdefault(_way(name), []).append(max(0.0, seconds - latency_s * in_turn[name]))
    return latency_s, {way: statistics.fmean(calls_s) for way, calls_s in found.items()}


def _way(figure: str) -> str:
    """The planner's name for what was timed: one of ``thinwire.planner.hardware.WAYS``."""
    return "rounds" if figure in ROUNDS else figure
