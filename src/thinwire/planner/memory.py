"""Bytes in memory as tables of terms: what a device holds, what a host holds."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields

__all__ = ["DeviceBytes", "HostBytes", "Memory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceBytes:
    """Bytes on one device at the worst moment.

    Attributes:
        parameters: the rank's own share, in fp32.
        gradients: reduced, the rank's own share; all of them where they are not sharded.
        optimizer_states: the rank's own share, in their format.
        activations: kept for backward, and what backward works on.
        buffers: gathered parameters, gradients before reduction, flat buffers, payloads.
        replica: low-precision copies of parameters that are the rank's or the host's to keep.
        residual: what error feedback adds next time.
        allocator: held by the allocator beyond the tensors.
        context: of the runtime.
    """

    parameters: float = 0.0
    gradients: float = 0.0
    optimizer_states: float = 0.0
    activations: float = 0.0
    buffers: float = 0.0
    replica: float = 0.0
    residual: float = 0.0
    allocator: float = 0.0
    context: float = 0.0

    @property
    def tensors(self) -> float:
        """Bytes of live tensors: all but the allocator's and the runtime's."""
        return self.total - self.allocator - self.context

    @property
    def total(self) -> float:
        """All terms together."""
        total: float = sum(astuple(self))
        return total

    def to_json(self) -> dict[str, int]:
        """Every term and the total, in whole bytes."""
        terms = {item.name: round(getattr(self, item.name)) for item in fields(self)}
        return {**terms, "total": sum(terms.values())}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostBytes:
    """Bytes in one host's memory, of all its ranks together; not what CPU devices compute in.

    Attributes:
        optimizer_states: offloaded moments and fp32 parameters.
        gradients: on their way to the host's optimizer.
        parameters: offloaded ones in the compute dtype.
        activations: offloaded inputs of layers.
        pinned: staging buffers for copies.
        disk: on disk, not in memory; not part of the total.
    """

    optimizer_states: float = 0.0
    gradients: float = 0.0
    parameters: float = 0.0
    activations: float = 0.0
    pinned: float = 0.0
    disk: float = 0.0

    @property
    def total(self) -> float:
        """All terms in memory together."""
        total: float = sum(astuple(self)) - self.disk
        return total

    def to_json(self) -> dict[str, int]:
        """Every term and the total, in whole bytes."""
        terms = {item.name: round(getattr(self, item.name)) for item in fields(self)}
        return {**terms, "total": sum(terms.values()) - terms["disk"]}


@dataclass(frozen=True, slots=True)
class Memory:
    """What one recipe needs.

    Attributes:
        device: of the worst rank.
        host: of one host.
        moment: when the device needs most, for people.
    """

    device: DeviceBytes
    host: HostBytes
    moment: str
