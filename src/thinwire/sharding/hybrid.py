"""Hybrid sharding: shards within the host, the same on every host, averaged across hosts.

    host 0   rank 0: shard A    rank 1: shard B     gather and reduce-scatter: within the host
                  |                  |
               average            average           across hosts: what this file does
                  |                  |
    host 1   rank 2: shard A    rank 3: shard B

Of R ranks on a host each sends its 1 / R of the gradients across, and no weights
(arXiv 2304.11277, section 3.2.2). FSDP2's own hybrid mode, on a 2-D mesh, all-reduces by itself,
and nothing can be plugged in there. So FSDP2 is given a 1-D mesh within the host, and what it calls
its all-reduce hook does the rest. It calls it right after the reduce-scatter, with the result.

Note: held sums. Under ``accumulate=within`` what the reductions of early micro-batches returned is
held back here until the last one, and FSDP2 goes on with zeros.

Note: one job. Where a sender runs reductions beside backward, the reduce-scatter leaves its job to
the hook, which runs both as one: what the first half decodes is what the second half encodes. Under
``staleness=1`` both halves are late together: they work in a tensor of their own, and FSDP2 goes on
with what the job of the step before left.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from thinwire.comm import collectives, stock
from thinwire.comm.collectives import Traffic
from thinwire.comm.hierarchy import TwoLevels
from thinwire.comm.layout import Piece, ShardLayout, even_piece_numel
from thinwire.comm.sender import Job
from thinwire.comm.topology import Peers, Topology
from thinwire.errors import ConfigError, StateError
from thinwire.sharding.compression import Compression
from thinwire.sharding.fsdp import Socket
from thinwire.sharding.slots import collect, deal_out
from thinwire.sharding.units import Unit, cast_format
from thinwire.wire.feedback import Feedback
from thinwire.wire.key import Key
from thinwire.wire.packing import Packing

__all__ = [
    "CompressedAverage",
    "StockAverage",
    "mesh_within_host",
    "pieces_across",
    "plug_in_averages",
]

ACROSS = 4  # separates the random numbers of this average from those of other directions


class StockAverage(Socket):
    """PyTorch's own all-reduce across hosts, counted.

    Args:
        unit: whose reduced gradients are averaged.
        compression: what all sockets of the model share.
        across: the ranks with this place on every host, in a group of their own.
    """

    def __init__(self, unit: Unit, compression: Compression, across: Peers) -> None:
        super().__init__(unit, compression)
        self._across = across
        self._held = compression.new_held_sum()

    def __call__(self, reduced: Tensor) -> None:
        """Average the gradients of the own shard over the hosts, in place, as they are."""
        _keep_for_this_stream(reduced)
        if self.compression.stays_within:
            self._held.take(reduced)
            reduced.zero_()
            return
        held = self._held.release()
        if held is not None:
            reduced.add_(held)
        ledger = self.compression.ledger
        stock.all_reduce(reduced, self._across, ledger, dist.ReduceOp.AVG).wait()


class CompressedAverage(Socket):
    """An all-reduce across hosts in the recipe's format for gradients.

    Args:
        unit: whose reduced gradients are averaged.
        compression: what all sockets of the model share.
        levels: all ranks, split into those on this host and those with this place elsewhere.
    """

    def __init__(self, unit: Unit, compression: Compression, levels: TwoLevels) -> None:
        super().__init__(unit, compression)
        self._levels = levels
        self._feedback = _AcrossHosts(compression.feedback)
        self._reduction: tuple[Job, Tensor] | None = None
        self._held = compression.new_held_sum()
        # by the layout within the host, which changes where formats are chosen anew
        self._layouts: weakref.WeakKeyDictionary[ShardLayout, ShardLayout] = (
            weakref.WeakKeyDictionary()
        )

    def run_after(self, reduction: Job, reduced: Tensor) -> None:
        """Take over the reduction within the host, after which the hook is called next.

        Args:
            reduction: the job.
            reduced: where it writes its result.
        """
        self._reduction = reduction, reduced

    def __call__(self, output: Tensor) -> None:
        """Average the gradients of the own shard over the hosts, in place, now or beside backward.

        Bytes sent per rank across hosts = those of :func:`thinwire.comm.collectives.all_reduce`
        over H hosts, for the trained elements of the own shard.
        """
        _keep_for_this_stream(output)
        compression, late = self.compression, self.compression.late
        (reduction, reduced), self._reduction = self._reduction or (None, output), None
        if compression.stays_within:
            if reduction is not None:
                compression.reduce_now(reduction)
            self._held.take(reduced)
            output.zero_()
            return
        if self._levels.within.size == 1:
            # otherwise the reduction within the host has seen the contribution
            self._observe(output)
        key = self.key(ACROSS, compression.counters.count(f"averages of {self.unit.name}"))
        if late is not None:
            late.wait(member.name for member in self.unit.trained)
            reduced = output.clone() if reduction is None else reduced
            self.exchange_late(late, output, reduced, self._job(reduction, reduced, key))
            return
        job = self._job(reduction, reduced, key)
        if compression.may_defer(self.unit, reduced, is_final=reduction is not None):
            compression.reduce_later(job)
        else:
            compression.reduce_now(job)

    def _job(self, reduction: Job | None, reduced: Tensor, key: Key) -> Job:
        """Both halves; what travels in which format, and what is held, is settled by now."""
        within = self._layout_within(reduced)
        layout, held = self._layout_across(within), self._held.release()
        traffic = Traffic(layout, self._levels.across, self.compression.ledger, self._feedback)
        parts = self._parts(reduced, within)

        def run() -> Job:
            for transfer in reduction or ():
                yield dataclasses.replace(transfer, is_last=False)
            if held is not None:
                reduced.add_(held)
            slots = deal_out(parts, layout)
            yield from collectives.all_reduce(slots.view(-1), traffic, key, dist.ReduceOp.AVG)
            collect(slots, parts, layout)

        return run()

    def _observe(self, output: Tensor) -> None:
        within = self._layout_within(output)
        names = (piece.name for piece in within.pieces)
        self.compression.observe(zip(names, self._parts(output, within), strict=True))

    def _layout_within(self, reduced: Tensor) -> ShardLayout:
        """How the ranks of a host share the gradients of which ``reduced`` is the own slot."""
        formats, exact = self.compression.grad_formats, cast_format(reduced.dtype)
        layout = self.unit.layout(self.unit.trained, formats, exact)
        if reduced.numel() != layout.slot_numel:
            raise StateError(
                f"module {self.unit.name or '(root)'} reduced {reduced.numel()} elements, but its "
                f"trained parameters have {layout.slot_numel}: parameters were added, removed or "
                "resized after compression was attached; attach it again"
            )
        return layout

    def _layout_across(self, within: ShardLayout) -> ShardLayout:
        """The own slot dealt out over the hosts, on which ranks of this place hold the same."""
        place, num_hosts = self._levels.within.rank, self._levels.across.size
        if within not in self._layouts:
            self._layouts[within] = ShardLayout(
                (_over_hosts(piece, piece.real_numel(place), num_hosts) for piece in within.pieces),
                num_hosts,
            )
        return self._layouts[within]

    def _parts(self, reduced: Tensor, within: ShardLayout) -> list[Tensor]:
        """Each parameter's real elements in ``reduced``."""
        place = self._levels.within.rank
        slots = torch.split(reduced, [piece.piece_numel for piece in within.pieces])
        return [
            slot[: piece.real_numel(place)]
            for slot, piece in zip(slots, within.pieces, strict=True)
        ]


class _AcrossHosts:
    """The model's feedback, with residuals of this average's own.

    Without a name of their own they would be those of the reduction within the host, which sends to
    ranks of the same numbers.
    """

    def __init__(self, feedback: Feedback) -> None:
        self._feedback = feedback

    def encode_into(self, packing: Packing, flat: Tensor, out: Tensor, key: Key, part: str) -> None:
        """Encode as `Feedback.encode_into` does."""
        self._feedback.encode_into(packing, flat, out, key, f"across {part}")


def pieces_across(pieces: Iterable[Piece], levels: TwoLevels) -> Iterator[Piece]:
    """How parameters are dealt out over hosts: each part of them that has a place on a host."""
    for piece in pieces:
        for place in range(levels.within.size):
            yield _over_hosts(piece, piece.real_numel(place), levels.across.size)


def _over_hosts(piece: Piece, numel: int, num_hosts: int) -> Piece:
    """What a rank holds of a parameter, cut evenly over the hosts."""
    piece_numel = even_piece_numel(numel, num_hosts, piece.format.block or 1)
    return Piece(name=piece.name, numel=numel, piece_numel=piece_numel, format=piece.format)


def mesh_within_host(topology: Topology, device_type: str) -> DeviceMesh:
    """The 1-D mesh of this host's ranks, for ``fully_shard``. A collective call.

    Raises:
        ConfigError: hosts hold different numbers of ranks, or a host's ranks are not consecutive.
    """
    per_host = _ranks_per_host(topology)
    shape = (topology.size // per_host, per_host)
    return init_device_mesh(device_type, shape, mesh_dim_names=("host", "rank"))["rank"]


def plug_in_averages(units: list[Unit], compression: Compression) -> dict[str, CompressedAverage]:
    """Set the all-reduce hook of every unit. A collective call.

    Returns:
        By the unit's name, the hooks that take over the reduction within the host.

    Raises:
        ConfigError: a unit is sharded over other ranks than those of this host, or has such a hook
            already.
    """
    topology = compression.topology
    per_host = _ranks_per_host(topology)
    world = dist.group.WORLD
    assert world is not None  # the topology was asked of it
    levels = TwoLevels.of(topology.peers(world))
    for unit in units:
        _check_unit(unit, per_host)
    if levels.across.size == 1:
        return {}
    if compression.recipe.is_uncompressed:
        # the backend's own all-reduce needs a group; what we send ourselves does not
        places = [list(range(place, topology.size, per_host)) for place in range(per_host)]
        group, _ = dist.new_subgroups_by_enumeration(places)  # type: ignore[no-untyped-call]
        assert group is not None  # every rank has its place
        across = topology.peers(group)
        for unit in units:
            unit.set_all_reduce_hook(StockAverage(unit, compression, across))
        return {}
    averages = {unit.name: CompressedAverage(unit, compression, levels) for unit in units}
    for unit in units:
        unit.set_all_reduce_hook(averages[unit.name])
    return averages


def _check_unit(unit: Unit, per_host: int) -> None:
    name = unit.name or "(root)"
    if unit.members and unit.world_size != per_host:
        raise ConfigError(
            f"hybrid=true shards within the host, which has {per_host} ranks, but module {name} is "
            f"sharded over {unit.world_size}; use thinwire.shard on the plain model, or pass "
            "fully_shard a 1-D mesh of the ranks of a host"
        )
    if unit.has_foreign_all_reduce_hook:
        raise ConfigError(
            f"hybrid=true needs the all-reduce hook of module {name}, which is set already; leave "
            "set_all_reduce_hook out, or hybrid"
        )


def _ranks_per_host(topology: Topology) -> int:
    per_host = topology.ranks_per_host
    if per_host is None:
        raise ConfigError(
            "hybrid=true needs the same number of consecutive ranks on every host, but rank by "
            f"rank the hosts are {topology.hosts}; start as many ranks on each host, or leave "
            "hybrid out"
        )
    return per_host


def _keep_for_this_stream(tensor: Tensor) -> None:
    """Tell the allocator that FSDP2's all-reduce stream, which is current now, uses a tensor.

    FSDP2 itself keeps the input of its own all-reduce alive, but not that of a hook's.
    """
    if tensor.device.type != "cpu":
        tensor.record_stream(torch.accelerator.current_stream(tensor.device))
