"""What the planner knows of machines: devices, hosts, links, and the cluster they make.

Every number has a unit in its name and a source beside it (``sources``): calibrated on the machine
itself, published by someone who measured it, from a datasheet, given on the command line, or
assumed. Nothing here is measured; the presets beside this file hold the numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from thinwire.errors import ConfigError
from thinwire.planner.curve import Curve
from thinwire.planner.number_range import check_costs, check_fields, check_number
from thinwire.planner.scope import Scope
from thinwire.planner.source import check_sources
from thinwire.planner.value_form import check_at_most
from thinwire.planner.workload import DTYPE_BYTES
from thinwire.quoting import quoted
from thinwire.validity import COMPUTE_DTYPES

__all__ = [
    "LOW_RANK",
    "OVERHEADS",
    "WAYS",
    "Backend",
    "Cluster",
    "CodecRates",
    "Device",
    "Host",
    "Link",
]

KINDS = ("accelerator", "cpu")
# ways of wrapping a model, which cost more or less Python: DDP, DDP with a hook that compresses,
# FSDP2, FSDP2 with compressed traffic, FSDP2 with a resident replica
OVERHEADS = ("replicated", "hooked", "stock", "compressed", "resident")
# kinds of formats by what their codecs cost
DECODED_KINDS = ("cast", "fp8", "int", "clip", "levels", "hadamard", "log", "sign", "topk")
ENCODED_KINDS = (*DECODED_KINDS, "stochastic")
# what factoring matrices costs: seconds by matrix and by pair of factors, copies of fp32 elements
# by element, by element and factor, and by row and pair of factors
LOW_RANK = ("matrix_s", "pair_s", "element_copies", "factor_copies", "pair_copies")
PROTOCOLS = ("ideal", "tcp", "rdma", "grpc")
# ways of sending of which more may be known: three collectives in a ring, and all in rounds
WAYS = ("all_gather", "reduce_scatter", "all_reduce", "rounds")


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecRates:
    """What encoding and decoding cost, in copies of the fp32 tensor.

    One copy reads and writes every element once as fp32, so ratios carry over between machines
    better than seconds do.

    Attributes:
        encode_copies: by kind of format, see ``ENCODED_KINDS``.
        decode_copies: by kind of format, see ``DECODED_KINDS``.
        sum_copies: decode and add to a sum, per element of each payload; by the same kinds.

    Raises:
        ConfigError: a kind is missing or unknown, or a number is not above 0.
    """

    encode_copies: Mapping[str, float]
    decode_copies: Mapping[str, float]
    sum_copies: Mapping[str, float]

    def __post_init__(self) -> None:
        for name in ("encode_copies", "decode_copies", "sum_copies"):
            kinds = ENCODED_KINDS if name == "encode_copies" else DECODED_KINDS
            check_costs(f"codec: {name}", getattr(self, name), kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What one rank computes on.

    Attributes:
        name: of the preset.
        kind: ``"accelerator"``, whose copies run beside its compute, or ``"cpu"``.
        memory_bytes: all of its memory; ``None``: unknown.
        memory_bytes_per_s: read and written together.
        memory_efficiency: share of that by bytes of one kernel.
        flop_per_s: peak of matrix products by dtype.
        matmul_efficiency: share of that by FLOPs of one product.
        kernel_s: from one kernel's end to the next one's start.
        host_bytes_per_s: to and from the host's memory, each way.
        within_bytes_per_s: to another device of the same host, each way.
        within_efficiency: share of that which collectives reach.
        within_latency_s: of the smallest message there.
        context_bytes: taken by the runtime before the first tensor.
        slack: what the allocator holds beyond the tensors, as a share of them.
        codec: what encoding and decoding cost.
        low_rank: what factoring matrices costs, see ``LOW_RANK``.
        adam_parameters_per_s: of a fused AdamW step; ``None``: as its memory traffic says.
        unit_s: of a micro-batch, that each layer costs besides its arithmetic, codecs and
            messages; by what wraps the model, see ``OVERHEADS``.
        parameter_s: the same, for each parameter.
        step_s: of a step, after its last backward; the same.
        sources: where each number comes from, by attribute.

    Raises:
        ConfigError: a number without a source, or out of range.
    """

    name: str
    kind: str
    memory_bytes: float | None
    memory_bytes_per_s: float
    memory_efficiency: Curve
    flop_per_s: Mapping[str, float]
    matmul_efficiency: Curve
    kernel_s: float
    host_bytes_per_s: float
    within_bytes_per_s: float
    within_efficiency: float
    within_latency_s: float
    context_bytes: float
    slack: float
    codec: CodecRates
    low_rank: Mapping[str, float]
    adam_parameters_per_s: float | None
    unit_s: Mapping[str, float]
    parameter_s: Mapping[str, float]
    step_s: Mapping[str, float]
    sources: Mapping[str, str] = field(repr=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            known = ", ".join(KINDS)
            raise ConfigError(f"device {self.name}: kind {quoted(self.kind)} is not one of {known}")
        owner = f"device {self.name}"
        check_fields(owner, self, zero=("context_bytes", "slack", "kernel_s"))
        if not self.flop_per_s:
            raise ConfigError(
                f"{owner}: flop_per_s is empty; give a rate, such as {{ fp32 = 1e11 }}"
            )
        for dtype, rate in self.flop_per_s.items():
            if dtype not in DTYPE_BYTES:
                known = ", ".join(DTYPE_BYTES)
                raise ConfigError(f"{owner}: flop_per_s: {quoted(dtype)} is not one of {known}")
            check_number(f"{owner}: flop_per_s: {dtype}", rate)
        for name in ("unit_s", "parameter_s", "step_s", "low_rank"):
            keys = LOW_RANK if name == "low_rank" else OVERHEADS
            check_costs(f"{owner}: {name}", getattr(self, name), keys, may_be_zero=True)
        numbers = [item.name for item in dataclasses.fields(self)]
        for other in ("name", "kind", "sources"):
            numbers.remove(other)
        check_sources(owner, numbers, self.sources)

    @property
    def overlaps(self) -> bool:
        """Whether communication runs beside compute: on its own stream, on accelerators."""
        return self.kind == "accelerator"

    def peak(self, dtype: str) -> float:
        """FLOP/s of matrix products in a dtype.

        Raises:
            ConfigError: the device has none; says which a recipe can have instead.
        """
        if dtype not in self.flop_per_s:
            # some have dtypes that no recipe computes in
            usable = [f"compute={name}" for name in COMPUTE_DTYPES if name in self.flop_per_s]
            advice = " or ".join(usable) or "another device"
            raise ConfigError(f"device {self.name} has no matrix products in {dtype}: use {advice}")
        return self.flop_per_s[dtype]

    @property
    def copy_elements_per_s(self) -> float:
        """fp32 elements copied per second: four bytes read, four written."""
        return self.memory_bytes_per_s * self.memory_efficiency.at(1e9) / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What the ranks of a host share, links apart.

    Attributes:
        memory_bytes: of the host; ``None``: unknown.
        adam_parameters_per_s: of a vectorised CPU optimizer, all cores together.
        disk_bytes_per_s: read or written; ``None``: unknown.
        sources: where each number comes from, by attribute.

    Raises:
        ConfigError: a number without a source, or out of range.
    """

    memory_bytes: float | None
    adam_parameters_per_s: float
    disk_bytes_per_s: float | None
    sources: Mapping[str, str] = field(repr=False)

    def __post_init__(self) -> None:
        check_fields("host", self)
        check_sources(
            "host", ("memory_bytes", "adam_parameters_per_s", "disk_bytes_per_s"), self.sources
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What joins two hosts; the ranks of a host share it.

    Attributes:
        bit_per_s: each way.
        latency_s: one way, of the smallest message.
        loss: share of packets that are lost.
        protocol: ``"ideal"``, ``"tcp"``, ``"rdma"`` or ``"grpc"``.
        efficiency: share of the rate that carries payload, by bytes of one message.
        sources: where each number comes from, by attribute.

    Raises:
        ConfigError: a number without a source, or out of range.
    """

    bit_per_s: float
    latency_s: float
    loss: float = 0.0
    protocol: str = "ideal"
    efficiency: Curve = field(default_factory=lambda: Curve.flat(1.0))
    sources: Mapping[str, str] = field(repr=False)

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            known = ", ".join(PROTOCOLS)
            raise ConfigError(f"link: protocol {quoted(self.protocol)} is not one of {known}")
        check_fields("link", self, zero=("latency_s", "loss"))
        if self.loss >= 1:
            raise ConfigError(
                f"link: a loss of {self.loss} lets nothing through: give a share below 1"
            )
        if self.loss and self.protocol == "ideal":
            raise ConfigError(
                f"link: an ideal link loses nothing, but the loss is {self.loss}: give another "
                "protocol, such as tcp"
            )
        check_sources("link", ("bit_per_s", "latency_s", "loss", "efficiency"), self.sources)

    @property
    def bytes_per_s(self) -> float:
        """The rate in bytes."""
        return self.bit_per_s / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """How a collectives library fills a link.

    Attributes:
        name: ``"gloo"`` or ``"nccl"``.
        ring_share: share of the link that a ring all-gather or all-reduce fills.
        rounds_share: share that exchanges in rounds fill.
        message_s: what one more message costs besides its latency.
        call_s: what one call costs before its first byte.
        reduce_scatter_passes: how often a stock reduce-scatter sends its input; gloo runs an
            all-reduce inside and keeps a slice, so 2 there.
        has_tree: whether small all-reduces go along a tree.
        shares: by bytes of one message, where they were measured, in place of ``ring_share`` and
            ``rounds_share``: by way, see ``WAYS``.
        calls_s: where it was measured, in place of ``call_s``: by way.
        sources: where each number comes from, by attribute.

    Raises:
        ConfigError: a number without a source, or out of range.
    """

    name: str
    ring_share: float
    rounds_share: float
    message_s: float
    call_s: float
    reduce_scatter_passes: int
    has_tree: bool
    shares: Mapping[str, Curve] = field(default_factory=dict)
    calls_s: Mapping[str, float] = field(default_factory=dict)
    sources: Mapping[str, str] = field(repr=False)

    def __post_init__(self) -> None:
        owner = f"backend {self.name}"
        check_fields(owner, self, zero=("message_s", "call_s"))
        for name in ("ring_share", "rounds_share"):
            if getattr(self, name) > 1:
                raise ConfigError(
                    f"{owner}: {name} is {getattr(self, name)}, but must be at most 1"
                )
        if self.reduce_scatter_passes != int(self.reduce_scatter_passes):
            raise ConfigError(
                f"{owner}: reduce_scatter_passes is {self.reduce_scatter_passes}, but must be a "
                "whole number"
            )
        for name in ("shares", "calls_s"):
            for way in getattr(self, name):
                if way not in WAYS:
                    known = ", ".join(WAYS)
                    raise ConfigError(f"{owner}: {name}: {quoted(way)} is not one of {known}")
        for way, seconds in self.calls_s.items():
            check_number(f"{owner}: calls_s: {way}", seconds, may_be_zero=True)
        check_sources(
            owner,
            ("ring_share", "rounds_share", "message_s", "call_s"),
            self.sources,
        )

    def share(self, collective: str, *, is_ring: bool, message_bytes: float) -> float:
        """Share of the link that a collective fills, by its algorithm and its messages."""
        curve = self.shares.get(_way(collective, is_ring=is_ring))
        if curve is not None:
            return curve.at(max(message_bytes, 1.0))
        return self.ring_share if is_ring else self.rounds_share

    def started_s(self, collective: str, *, is_ring: bool) -> float:
        """Seconds of a call before its first byte, by its algorithm."""
        return self.calls_s.get(_way(collective, is_ring=is_ring), self.call_s)


def _way(collective: str, *, is_ring: bool) -> str:
    """One of ``WAYS``."""
    if not is_ring:
        return "rounds"
    return "all_reduce" if collective == "agreement" else collective


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """``hosts`` hosts of ``ranks_per_host`` ranks each, all alike.

    Attributes:
        hosts: how many.
        ranks_per_host: on each.
        device: of every rank.
        host: what the ranks of a host share.
        link: across hosts.
        backend: of the collectives.
        scope: what was measured to calibrate it; ``None``: it was not calibrated.

    Raises:
        ConfigError: no host, no rank, or more than 1e9 of them.
    """

    hosts: int
    ranks_per_host: int
    device: Device
    host: Host
    link: Link
    backend: Backend
    scope: Scope | None = None

    def __post_init__(self) -> None:
        if self.hosts < 1:
            raise ConfigError(f"{self.hosts} hosts: at least 1 is needed")
        if self.ranks_per_host < 1:
            raise ConfigError(f"{self.ranks_per_host} ranks per host: at least 1 is needed")
        check_at_most("hosts times ranks per host", self.world)

    @property
    def world(self) -> int:
        """Number of ranks on all hosts together."""
        return self.hosts * self.ranks_per_host

    def with_link(self, bit_per_s: float) -> Cluster:
        """The same cluster over a link of another rate."""
        return dataclasses.replace(self, link=dataclasses.replace(self.link, bit_per_s=bit_per_s))

    def with_compute_scale(self, factor: float) -> Cluster:
        """The same cluster with devices that compute ``factor`` times as fast."""
        device = dataclasses.replace(
            self.device,
            flop_per_s={dtype: factor * rate for dtype, rate in self.device.flop_per_s.items()},
            memory_bytes_per_s=factor * self.device.memory_bytes_per_s,
            kernel_s=self.device.kernel_s / factor,
        )
        return dataclasses.replace(self, device=device)
