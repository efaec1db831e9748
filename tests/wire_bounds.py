"""The largest error that each format may make on each element, from the payload's own scales."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from thinwire.formats import WireFormat
from thinwire.wire.logarithm import LogLevels
from thinwire.wire.reference.rotation import rotate
from thinwire.wire.scales import SMALLEST_SCALE
from wire_cases import block_of_each, rounding_of, section

# float32 arithmetic: two roundings of 2**-24 on up to 2**8 steps.
ARITHMETIC = 1 + 2.0**-14


def error_bound(fmt: WireFormat, payload: Tensor, x: Tensor) -> Tensor:
    """float64, one bound per element of the flat tensor ``x``."""
    magnitude = x.double().abs()
    if not x.numel():
        return magnitude
    if fmt.is_cast:
        wire_dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
        info = torch.finfo(wire_dtype[fmt.family])
        beyond = (magnitude - info.max).clamp(min=0)
        return rounding_of(wire_dtype[fmt.family], x) + beyond
    if fmt.family == "topk":
        return _sparse(fmt, x)
    if "hadamard" in fmt.options:
        return _rotated(fmt, payload, x)
    scales = section(payload, fmt, x.numel(), "scales")[block_of_each(fmt, x.numel())]
    if fmt.family == "sign":
        return (magnitude - scales).abs() + magnitude * 2.0**-22 + SMALLEST_SCALE
    if fmt.family == "log":
        return _logarithmic(fmt, scales, x)
    if fmt.family == "int":
        return _uniform(fmt, payload, scales, x)
    mantissa_bits, smallest = {"e4m3": (3, 2.0**-9), "e5m2": (2, 2.0**-16)}[fmt.family]
    largest = {"e4m3": 448, "e5m2": 57344}[fmt.family]
    steps = 1.0 if "stochastic" in fmt.options else 0.5
    spacing = magnitude * 2.0**-mantissa_bits + smallest * scales
    return (steps * spacing * ARITHMETIC).clamp(min=largest * SMALLEST_SCALE)


def _uniform(fmt: WireFormat, payload: Tensor, scales: Tensor, x: Tensor) -> Tensor:
    """Half a step, or a step; what clipping cuts off; the distance to the nearest learned level."""
    values, magnitude = x.double(), x.double().abs()
    top = 2 ** (fmt.bits - 1) - 1
    if "levels" in fmt.options:
        levels = payload[: 2**fmt.bits].view(torch.int8).double()
        distance = _distance(values, scales, levels)
        # A value is rounded to a point of int8 first, which may favour the level beyond.
        return ((distance + scales) * ARITHMETIC).clamp(min=256 * SMALLEST_SCALE)
    steps = 1.0 if "stochastic" in fmt.options else 0.5
    bound = steps * scales * ARITHMETIC
    if "shift" in fmt.options:
        # Near the largest float32 a scale stops growing, so that decoding stays finite.
        bound += (magnitude - (top - 0.5) * scales).clamp(min=0)
    if "asym" not in fmt.options:
        if "clip" in fmt.options:
            bound += (magnitude - top * scales).clamp(min=0)
        return bound.clamp(min=(top + 1) * SMALLEST_SCALE)
    bound = bound.clamp(min=2**fmt.bits * SMALLEST_SCALE)
    if "clip" in fmt.options:
        zeros = section(payload, fmt, x.numel(), "zeros")[block_of_each(fmt, x.numel())]
        bound += (zeros - values).clamp(min=0)
        bound += (values - zeros - (2**fmt.bits - 1) * scales).clamp(min=0)
    return bound + magnitude * 2.0**-23  # the zero point is added in float32


def _logarithmic(fmt: WireFormat, scales: Tensor, x: Tensor) -> Tensor:
    """The distance to the nearest level, or to the farther one of two neighbours."""
    values, magnitude = x.double(), x.double().abs()
    levels = LogLevels.of(fmt)
    tiny = levels.reach * SMALLEST_SCALE
    slack = magnitude * 2.0**-14
    if "stochastic" not in fmt.options:
        signed = torch.tensor(levels.signed, dtype=torch.float64)
        return (_distance(values, scales, signed) + slack).clamp(min=tiny)
    ascending = torch.tensor(levels.levels, dtype=torch.float64)
    gaps = ascending.diff()
    units = (magnitude / scales).nan_to_num(posinf=0.0)
    gap = gaps[(torch.searchsorted(ascending, units, right=True) - 1).clamp(max=len(gaps) - 1)]
    beyond = (magnitude - levels.reach * scales).clamp(min=0)
    return (gap * scales + beyond + slack).clamp(min=tiny)


def _distance(values: Tensor, scales: Tensor, levels: Tensor) -> Tensor:
    """From each value to the nearest of its block's levels."""
    grid = scales.unsqueeze(1) * levels.unsqueeze(0)
    return (values.unsqueeze(1) - grid).abs().amin(dim=1)


def _sparse(fmt: WireFormat, x: Tensor) -> Tensor:
    """Kept values are exact, and what is left out is not larger than the least that is kept."""
    if not x.numel():
        return x.double()
    magnitude = x.double().abs()
    layout = fmt.sparse_layout(x.numel())
    least_kept = magnitude.sort(descending=True).values[layout.num_kept - 1]
    return torch.where(magnitude > least_kept, 0.0, magnitude)


def _rotated(fmt: WireFormat, payload: Tensor, x: Tensor) -> Tensor:
    """A rotation keeps lengths: one element may receive the error of all 32."""
    inner = replace(fmt, options=fmt.options - {"hadamard"})
    whole = x.numel() - x.numel() % 32
    # An eighth is rotated; tails of blocks are whole runs, since blocks are multiples of 32.
    eighth = x.float().mul(0.125).view(1, -1)
    bound = error_bound(inner, payload, rotate(eighth).view(-1)) * 8
    runs = bound[:whole].view(-1, 32)
    lengths = x.double()[:whole].view(-1, 32).norm(dim=1)
    # Ten stages of float32 sums, forth and back.
    per_run = runs.norm(dim=1) + lengths * 10 * 2.0**-24
    bound[:whole] = per_run.repeat_interleave(32)
    return bound
