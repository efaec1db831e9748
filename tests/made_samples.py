"""Samples of a machine that is known: what its ranks would have measured, to the last digit."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from thinwire.lab import Layout
from thinwire.planner.compute import operations_s
from thinwire.planner.cost import factor_s
from thinwire.planner.group import Parallelism
from thinwire.planner.hardware_file import load_device
from thinwire.planner.models.gpt import GPTShape, gpt_workload
from thinwire.train.calibration.arithmetic import (
    BLOCK_SHAPES,
    DTYPES,
    UPDATED_NUMELS,
    block_tokens,
)
from thinwire.train.calibration.codecs import FORMATS, NUMELS, SUMMED, VERBS
from thinwire.train.calibration.factors import FIGURE as FACTORS
from thinwire.train.calibration.factors import factor_cases, work_of
from thinwire.train.calibration.sample import Sample
from thinwire.train.calibration.steps import OVERHEAD_OF, TINY_LAYERS, wide_hidden

__all__ = [
    "ADAM_PER_S",
    "CALL_S",
    "CODEC_S",
    "COPIED_BYTES_PER_S",
    "DISK_BYTES_PER_S",
    "LATENCY_S",
    "LINK_BYTES_PER_S",
    "LOW_RANK_PRICES",
    "PEAK",
    "WAYS",
    "made_samples",
]

COPIED_BYTES_PER_S = 8e9
PEAK = {"fp32": 5e10, "bf16": 2e11}
ADAM_PER_S = 4e8
DISK_BYTES_PER_S = 5e8
CODEC_S = 2e-9  # per element, every verb and format
LOW_RANK_PRICES = {
    "matrix_s": 1e-4,
    "pair_s": 1e-6,
    "element_copies": 5.0,
    "factor_copies": 0.5,
    "pair_copies": 0.25,
}
CALL_S, LATENCY_S = 2e-4, 1e-4
LINK_BYTES_PER_S = 25e6
# passes of a unit, and the share of the link that each way fills
WAYS = {
    "all_gather": (1, 0.6),
    "reduce_scatter": (2, 0.9),
    "all_reduce": (2, 0.8),
    "exchange": (1, 0.7),
    "gather": (1, 0.7),
}


def made_samples(layout: Layout, *, rounds: Sequence[float] = (1.0, 1.0)) -> list[Sample]:
    """The samples of ranks on hosts of one rank each.

    Args:
        layout: hosts of one rank.
        rounds: by how much each round is slower than the machine is.
    """
    found: list[tuple[str, str, float, float]] = [
        ("copy", "", 1 << 22, 8 * (1 << 22) / COPIED_BYTES_PER_S)
    ]
    found += [("disk", way, 1 << 25, (1 << 25) / DISK_BYTES_PER_S) for way in ("write", "read")]
    found += [("adamw", "", n, n / ADAM_PER_S) for n in UPDATED_NUMELS]
    for dtype in DTYPES:
        found += [("matmul", dtype, f, f / PEAK[dtype]) for f in (1e6, 1e8)]
        found += _blocks(dtype)
    for name in FORMATS:
        for verb in VERBS:
            for numel in NUMELS:
                size = SUMMED * numel if verb == "sum" else numel
                found.append(("codec", f"{verb} {name}", size, 1e-5 + CODEC_S * size))
    found += _factors()
    if layout.hosts > 1:
        for way, (passes, share) in WAYS.items():
            messages = passes * (layout.hosts - 1)
            for size in (1024, 1 << 16, 1 << 20):
                moving_s = 0.0 if size == 1024 else messages * size / (LINK_BYTES_PER_S * share)
                seconds = CALL_S + messages * LATENCY_S + moving_s
                found.append((way, "across", size, seconds))
        found += [
            ("tiny step", recipe, layers, 0.05 + 0.01 * layers)
            for recipe in OVERHEAD_OF
            for layers in TINY_LAYERS
        ]
        width = wide_hidden(8 * LINK_BYTES_PER_S)
        found += [("wide step", recipe, width, 0.5) for recipe in OVERHEAD_OF]
    return [
        Sample(figure=figure, case=case, size=size, seconds=tuple(f * seconds for f in rounds))
        for figure, case, size, seconds in found
    ]


def _factors() -> list[tuple[str, str, float, float]]:
    """Matrices on the machine as the planner sees it."""
    device = load_device(
        "cpu",
        {
            "memory_bytes_per_s": COPIED_BYTES_PER_S,
            "memory_efficiency": [[1.0, 1.0]],
            "low_rank": LOW_RANK_PRICES,
        },
    )
    found = []
    for case in factor_cases(torch.device("cpu")):
        unknown = Sample(figure=FACTORS, case=case.case, size=case.size, seconds=(1.0,))
        found.append((FACTORS, case.case, case.size, factor_s(work_of(unknown), device)))
    return found


def _blocks(dtype: str) -> list[tuple[str, str, float, float]]:
    """Blocks on the machine as the planner sees it."""
    device = load_device(
        "cpu",
        {
            "flop_per_s": PEAK,
            "matmul_efficiency": [[1e6, 1.0]],
            "memory_bytes_per_s": COPIED_BYTES_PER_S,
            "kernel_s": 1e-5,
        },
    )
    found = []
    for index, shape in enumerate(BLOCK_SHAPES):
        hidden, heads, _, length = shape
        workload = gpt_workload(GPTShape(layers=1, hidden=hidden, heads=heads), tokens=length)
        time = operations_s(
            workload.layers[0].operations,
            device,
            tokens=block_tokens(shape),
            dtype=dtype,
            parallelism=Parallelism(),
        )
        both_s = time.forward_s + time.backward_s
        found.append(("block forward", dtype, float(index + 1), time.forward_s))
        found.append(("block both ways", dtype, float(index + 1), both_s))
    return found
