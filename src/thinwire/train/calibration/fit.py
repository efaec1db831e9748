"""From samples to the numbers that the planner reckons with: least squares, part by part.

    copies, AdamW      seconds = start + elements / rate
    matrix products    the curve of rates by size; whole blocks then scale it and price a kernel
    codecs             seconds = start + elements / rate, in copies
    factors            seconds by matrix, pair of factors, element, and products of those
    messages           seconds = call + messages * latency + bytes / rate(size)
    training steps     what is left: seconds per layer, per parameter and per step

All rows count by their relative error, so that small sizes matter as much as large ones; training
steps count otherwise, see `thinwire.train.calibration.fit_steps`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from thinwire.planner.compute import operations_s
from thinwire.planner.cost import factor_s
from thinwire.planner.group import Parallelism
from thinwire.planner.hardware import LOW_RANK, Device
from thinwire.planner.hardware_file import load_device
from thinwire.planner.models.gpt import GPTShape, gpt_workload
from thinwire.train.calibration.arithmetic import BLOCK_SHAPES, DTYPES, block_tokens
from thinwire.train.calibration.codecs import VERBS, kind_of
from thinwire.train.calibration.factors import FIGURE as FACTORS
from thinwire.train.calibration.factors import work_of
from thinwire.train.calibration.sample import Sample

__all__ = ["COPY_MOVED_BYTES", "Residual", "device_table", "host_table", "least_squares"]

COPY_MOVED_BYTES = 8  # per fp32 element: read and written
CACHED = 0.1  # no cache is faster than memory by more: a fitted 0 says that the blocks cannot tell
FREE = dict.fromkeys(LOW_RANK, 0.0)
FASTEST_KERNEL_S = 1e-7  # a fitted 0 says that the blocks cannot tell, not that nothing is spent


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """How far a fit is from what it was fitted on.

    Attributes:
        part: what was fitted.
        rows: how many measurements.
        median: of the relative errors' sizes.
        largest: of them.
    """

    part: str
    rows: int
    median: float
    largest: float

    @classmethod
    def of(cls, part: str, pairs: Iterable[tuple[float, float]]) -> Residual:
        """The residual of pairs of fitted and measured seconds."""
        errors = [abs(fitted / measured - 1) for fitted, measured in pairs]
        return cls(
            part=part, rows=len(errors), median=statistics.median(errors), largest=max(errors)
        )


def least_squares(
    rows: Sequence[Sequence[float]],
    seconds: Sequence[float],
    *,
    scales: Sequence[float] | None = None,
) -> list[float]:
    """Coefficients, none below 0, that bring ``rows @ coefficients`` nearest to ``seconds``.

    Columns whose coefficient would be negative are left out one by one, the worst first, and so
    are those that are zero.

    Args:
        rows: one per measurement, all of the same length.
        seconds: to be explained.
        scales: seconds, above 0, of which errors are shares; ``None``: ``seconds`` themselves.
    """
    by = np.asarray(seconds if scales is None else scales, dtype=float)
    weighted, wanted = np.asarray(rows, dtype=float) / by[:, None], np.asarray(seconds) / by
    kept = [index for index in range(weighted.shape[1]) if weighted[:, index].any()]
    coefficients = [0.0] * weighted.shape[1]
    while kept:
        part = weighted[:, kept]
        # columns differ by many powers of ten: lstsq would take the small ones for zero
        scale = np.linalg.norm(part, axis=0)
        found = np.linalg.lstsq(part / scale, wanted, rcond=None)[0] / scale
        if found.min() >= 0:
            for column, value in zip(kept, found, strict=True):
                coefficients[column] = float(value)
            break
        del kept[int((found * scale).argmin())]
    return coefficients


def device_table(samples: Sequence[Sample], preset: str) -> tuple[dict[str, Any], list[Residual]]:
    """The table of a device: memory, products, kernels, codecs, AdamW, copies to and from its host.

    Args:
        samples: of all ranks at once; those of disks, collectives and steps are not looked at.
        preset: of the device, for what is not measured.

    Returns:
        The entries of ``[device]`` in a cluster file, and the residuals.
    """
    table: dict[str, Any] = {"preset": preset, **_memory(samples)}
    copies = _of(samples, "host copy")
    if copies:
        table["host_bytes_per_s"] = _both_ways(copies)
    start_s, adam_s = _line(_of(samples, "adamw"))
    table["adam_parameters_per_s"] = 1 / adam_s
    residuals = [_line_residual("AdamW", _of(samples, "adamw"), start_s, adam_s)]
    products, curve = _products(samples)
    table |= {"flop_per_s": products, "matmul_efficiency": curve}
    scaled, residual = _blocks(samples, load_device(preset, {**table, "source": "calibrated"}))
    table |= scaled
    residuals.append(residual)
    device = load_device(preset, {**table, "source": "calibrated"})
    table["codec"], codecs = _codecs(samples, device.copy_elements_per_s)
    table["low_rank"], factors = _factors(samples, device)
    return table, [*residuals, codecs, factors]


def host_table(samples: Sequence[Sample], per_host: int, preset: str) -> dict[str, Any]:
    """The table of a host: its disk, and its optimizer where hosts are the devices.

    Args:
        samples: of all ranks at once.
        per_host: ranks of a host, which share its disk.
        preset: of the device.
    """
    table: dict[str, Any] = {"disk_bytes_per_s": per_host * _both_ways(_of(samples, "disk"))}
    if load_device(preset).kind == "cpu":
        _, adam_s = _line(_of(samples, "adamw"))
        table["adam_parameters_per_s"] = per_host / adam_s
    return table


def _both_ways(samples: Sequence[Sample]) -> float:
    """The rate of as many bytes one way as the other, one after another."""
    return sum(s.size for s in samples) / sum(s.median_s for s in samples)


def _of(samples: Iterable[Sample], figure: str, case: str | None = None) -> list[Sample]:
    return [s for s in samples if s.figure == figure and case in (None, s.case)]


def _line(samples: Sequence[Sample]) -> tuple[float, float]:
    """Seconds to start and seconds per unit of size."""
    rows = [(1.0, sample.size) for sample in samples]
    start_s, unit_s = least_squares(rows, [sample.median_s for sample in samples])
    return start_s, unit_s


def _line_residual(part: str, samples: Sequence[Sample], start_s: float, unit_s: float) -> Residual:
    return Residual.of(part, ((start_s + unit_s * s.size, s.median_s) for s in samples))


def _memory(samples: Sequence[Sample]) -> dict[str, Any]:
    """The rate of large copies, those that do not stay in the caches."""
    (copy,) = _of(samples, "copy")
    rate = COPY_MOVED_BYTES * copy.size / copy.median_s
    size_bytes = COPY_MOVED_BYTES * copy.size
    return {"memory_bytes_per_s": rate, "memory_efficiency": [[size_bytes, 1.0]]}


def _products(samples: Sequence[Sample]) -> tuple[dict[str, float], list[list[float]]]:
    """The peak of every dtype, and the share of it by size: the dtypes' geometric mean."""
    peaks, shares = {}, dict[float, list[float]]()
    for dtype in DTYPES:
        rates = {
            sample.size: sample.size / sample.median_s for sample in _of(samples, "matmul", dtype)
        }
        peaks[dtype] = max(rates.values())
        for size, rate in rates.items():
            shares.setdefault(size, []).append(rate / peaks[dtype])
    return peaks, [
        [size, statistics.geometric_mean(found)] for size, found in sorted(shares.items())
    ]


def _blocks(samples: Sequence[Sample], device: Device) -> tuple[dict[str, Any], Residual]:
    """Scales the rates so that whole transformer blocks take what they take; prices a kernel."""
    rows, seconds = [], []
    parts = [_part(device, products=True), _part(device, moved=True), _part(device, kernels=True)]
    for column, dtype in enumerate(DTYPES):
        for figure in ("block forward", "block both ways"):
            for sample in _of(samples, figure, dtype):
                products_s, moved_s, kernels_s = (
                    _block_s(part, sample, dtype, both=figure == "block both ways")
                    for part in parts
                )
                by_dtype = [0.0] * len(DTYPES)
                by_dtype[column] = products_s
                rows.append((*by_dtype, kernels_s, moved_s))
                seconds.append(sample.median_s)
    coefficients = least_squares(rows, seconds)
    fitted = [sum(c * v for c, v in zip(coefficients, row, strict=True)) for row in rows]
    *slowness, kernel, moved = coefficients
    table = {
        **_pointwise(device, moved),
        "flop_per_s": {
            dtype: device.flop_per_s[dtype] / slow
            for dtype, slow in zip(DTYPES, slowness, strict=True)
        },
        "kernel_s": max(FASTEST_KERNEL_S, kernel),
    }
    return table, Residual.of("transformer blocks", zip(fitted, seconds, strict=True))


def _pointwise(device: Device, slowness: float) -> dict[str, Any]:
    """The memory's rate for copies, and for kernels that also compute, such as GELU's.

    The blocks' kernels move less than the largest copy, so size tells the two apart.
    """
    (copied_bytes, _), *_ = device.memory_efficiency.points
    copied, computed = device.memory_bytes_per_s, device.memory_bytes_per_s / max(slowness, CACHED)
    peak = max(copied, computed)
    return {
        "memory_bytes_per_s": peak,
        "memory_efficiency": [[copied_bytes / 2, computed / peak], [copied_bytes, copied / peak]],
    }


def _part(
    device: Device, *, products: bool = False, moved: bool = False, kernels: bool = False
) -> Device:
    """A device on which only one kind of work takes time; kernels take one second each."""
    endless = 1e30
    return load_device(
        "cpu",
        {
            "flop_per_s": dict(device.flop_per_s) if products else dict.fromkeys(DTYPES, endless),
            "matmul_efficiency": [list(point) for point in device.matmul_efficiency.points],
            "memory_bytes_per_s": device.memory_bytes_per_s if moved else endless,
            "memory_efficiency": [list(point) for point in device.memory_efficiency.points],
            "kernel_s": 1.0 if kernels else 0.0,
        },
    )


def _block_s(device: Device, sample: Sample, dtype: str, *, both: bool) -> float:
    shape = BLOCK_SHAPES[round(sample.size) - 1]
    hidden, heads, _, length = shape
    workload = gpt_workload(GPTShape(layers=1, hidden=hidden, heads=heads), tokens=length)
    time = operations_s(
        workload.layers[0].operations,
        device,
        tokens=block_tokens(shape),
        dtype=dtype,
        parallelism=Parallelism(),
    )
    return time.forward_s + (time.backward_s if both else 0.0)


def _codecs(samples: Sequence[Sample], copied_per_s: float) -> tuple[dict[str, Any], Residual]:
    """Seconds per element of every verb and kind, in copies of a large tensor."""
    found: dict[tuple[str, str], list[float]] = {}
    pairs = []
    for case in dict.fromkeys(sample.case for sample in _of(samples, "codec")):
        same = _of(samples, "codec", case)
        verb, name = case.split(" ", 1)
        start_s, unit_s = _line(same)
        pairs += [(start_s + unit_s * s.size, s.median_s) for s in same]
        found.setdefault((verb, kind_of(verb, name)), []).append(unit_s * copied_per_s)
    # a line through noise may be flat; nothing is decoded for nothing
    copies = {key: max(1e-3, math.exp(_mean_log(values))) for key, values in found.items()}
    table = {f"{verb}_copies": _of_verb(copies, verb) for verb in VERBS}
    return table, Residual.of("codecs", pairs)


def _factors(samples: Sequence[Sample], device: Device) -> tuple[dict[str, float], Residual]:
    """The price of each of ``LOW_RANK``: what the planner says if one costs 1 and the others 0."""
    same = _of(samples, FACTORS)
    rows = [
        [
            factor_s(work_of(sample), replace(device, low_rank={**FREE, name: 1.0}))
            for name in LOW_RANK
        ]
        for sample in same
    ]
    prices = least_squares(rows, [sample.median_s for sample in same])
    fitted = (sum(p * v for p, v in zip(prices, row, strict=True)) for row in rows)
    pairs = zip(fitted, (sample.median_s for sample in same), strict=True)
    return dict(zip(LOW_RANK, prices, strict=True)), Residual.of("factors of matrices", pairs)


def _mean_log(values: Sequence[float]) -> float:
    return statistics.fmean(math.log(max(value, 1e-9)) for value in values)


def _of_verb(copies: Mapping[tuple[str, str], float], verb: str) -> dict[str, float]:
    return {kind: value for (of, kind), value in copies.items() if of == verb}
