"""Seconds of arithmetic: matrix products against the peak, everything else against the memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from thinwire.planner.group import Parallelism
from thinwire.planner.hardware import Device
from thinwire.planner.operation import BACKWARD_FLOPS, BACKWARD_MOVED, Operation
from thinwire.planner.workload import DTYPE_BYTES

__all__ = ["RECOMPUTE", "ComputeTime", "operations_s", "optimizer_s"]

# what backward runs again: nothing, the core of attention, or the whole layer
RECOMPUTE = ("none", "selective", "full")
# AdamW in one pass: parameter, gradient and two moments read, all but the gradient written
ADAM_MOVED_BYTES = 28


@dataclass(frozen=True, slots=True)
class ComputeTime:
    """Seconds of forward and of backward, recomputation included in the latter."""

    forward_s: float
    backward_s: float


def operations_s(
    operations: Iterable[Operation],
    device: Device,
    *,
    tokens: float,
    dtype: str,
    parallelism: Parallelism,
    recompute: str = "none",
) -> ComputeTime:
    """Seconds of a layer's operations for one micro-batch.

    Args:
        operations: of one layer.
        device: that runs them.
        tokens: of the micro-batch.
        dtype: of the matrix products.
        parallelism: its tensor-parallel ranks share what can be divided.
        recompute: what backward runs again, one of ``RECOMPUTE``.

    Raises:
        ConfigError: the device has no matrix products in this dtype.
    """
    forward_s = backward_s = 0.0
    for operation in operations:
        products_s = _products_s(operation, device, tokens, dtype, parallelism)
        moving_s = _moving_s(operation, device, tokens, dtype, parallelism)
        launch_s = operation.kernels * device.kernel_s
        once_s = products_s + moving_s + launch_s
        forward_s += once_s
        backward_s += BACKWARD_FLOPS * products_s + BACKWARD_MOVED * moving_s + 2 * launch_s
        if recompute == "full" or (recompute == "selective" and operation.core):
            backward_s += once_s
    return ComputeTime(forward_s, backward_s)


def optimizer_s(numel: float, device: Device) -> float:
    """Seconds of a fused AdamW step over this many fp32 parameters on the device."""
    if device.adam_parameters_per_s is not None:
        return numel / device.adam_parameters_per_s
    moved_bytes = ADAM_MOVED_BYTES * numel
    share = device.memory_efficiency.at(max(moved_bytes, 1.0))
    return moved_bytes / (device.memory_bytes_per_s * share) + device.kernel_s


def _products_s(
    operation: Operation, device: Device, tokens: float, dtype: str, parallelism: Parallelism
) -> float:
    flops = operation.flops * operation.executed * tokens
    if operation.split:
        flops /= parallelism.tp
    if not flops:
        return 0.0
    return flops / (device.peak(dtype) * device.matmul_efficiency.at(flops))


def _moving_s(
    operation: Operation, device: Device, tokens: float, dtype: str, parallelism: Parallelism
) -> float:
    moved_bytes = operation.moved_in_bytes(DTYPE_BYTES[dtype]) * tokens
    if operation.split or parallelism.sequence:
        moved_bytes /= parallelism.tp
    if not moved_bytes:
        return 0.0
    share = device.memory_efficiency.at(moved_bytes)
    return moved_bytes / (device.memory_bytes_per_s * share)
