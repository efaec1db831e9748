"""Gathers served from resident replicas: one delta a step instead of two gathers.

Note: when deltas leave. At the start of every forward pass of the model each rank compares its
shards with the replicas, and all ranks agree, in one small all-reduce, on what each unit needs:
nothing, a delta, or a refresh. The updates are then handed to the sending threads in the order of
the forward pass, and each unit's gather waits for its own only. Gathers in backward, and those of
a pass over unchanged weights, send nothing. Where gradients are late they are still under way by
then, so deltas have a line of their own.

Nothing is assumed about who writes to weights: what is compared is their bits.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from thinwire.comm.sender import Ticket, run_now
from thinwire.comm.stock import all_reduce_max
from thinwire.sharding.compression import Compression, in_backward
from thinwire.sharding.fsdp import Socket, check_compute_dtype
from thinwire.sharding.resident import Change, Resident
from thinwire.sharding.units import Unit

__all__ = ["ReplicaAllGather", "Residents"]

DELTAS = 3  # separates the random numbers of the deltas from those of other directions


class Residents:
    """The replicas of one model, brought up to date at the start of a forward pass.

    Args:
        model: the model whose forward passes are watched.
        compression: what all sockets of the model share.
    """

    def __init__(self, model: nn.Module, compression: Compression) -> None:
        self._compression = compression
        self._sockets: list[ReplicaAllGather] = []
        self._in_forward = False
        model.register_forward_pre_hook(self._begin, prepend=True)
        model.register_forward_hook(self._end, always_call=True)

    def add(self, socket: ReplicaAllGather) -> None:
        """Take a unit in; units are added in the order of the forward pass."""
        self._sockets.append(socket)

    def ensure_fresh(self, socket: ReplicaAllGather) -> None:
        """Bring one unit up to date if it is gathered outside a forward pass of the model."""
        if not self._in_forward and not in_backward():
            self._refresh([socket])

    def _begin(self, *_: Any) -> None:
        self._in_forward = True
        if not in_backward():
            self._refresh(self._sockets)

    def _end(self, *_: Any) -> None:
        self._in_forward = False

    # a forward pass in inference mode brings up to date what training goes on with
    @torch.inference_mode(mode=False)
    @torch.no_grad()
    def _refresh(self, sockets: list[ReplicaAllGather]) -> None:
        if not sockets:
            return  # a single rank: FSDP2 gathers nothing
        for socket in sockets:
            socket.wait()
        changes = [socket.resident.examine() for socket in sockets]
        agreed = all_reduce_max(changes, sockets[0].group_peers, self._compression.ledger)
        for socket, change in zip(sockets, agreed, strict=True):
            if change != Change.NONE:
                socket.update(change)
        if Change.RESTORE in agreed:
            self._refresh(sockets)  # now for what happened since the state was saved


class ReplicaAllGather(Socket):
    """Serves a unit's gathers from its resident replica."""

    def __init__(
        self,
        unit: Unit,
        compression: Compression,
        residents: Residents,
    ) -> None:
        super().__init__(unit, compression)
        sharded = unit.members[0].sharded
        assert sharded is not None  # attaching resharded the model
        self.group_peers = self.peers(sharded.device_mesh.get_group(-1))
        recipe, ledger = compression.recipe, compression.ledger
        self.resident = Resident(unit, recipe, self.group_peers, ledger)
        self._residents = residents
        compression.stores[f"replica of {unit.name}"] = _Kept(self)
        self._ticket: Ticket | None = None
        residents.add(self)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,  # noqa: ARG002 - FSDP2's interface
        async_op: bool = False,  # noqa: ARG002 - FSDP2's interface
    ) -> None:
        """Copy the replica to where FSDP2 wants the gathered weights."""
        check_compute_dtype(self.compression.recipe, input_tensor.dtype)
        self._residents.ensure_fresh(self)
        self.wait()
        self.resident.read_into(output_tensor)

    def update(self, change: int) -> None:
        """Send what the ranks agreed on, beside compute if there is a sender."""
        counters, updates = self.compression.counters, f"updates of {self.unit.name}"
        # a restored row is sent as it is, and a run that was not interrupted does not send it
        is_counted = change != Change.RESTORE
        # for good: what is sent is what the step before changed, and replicas keep it
        num_updates = counters.count_for_good(updates) if is_counted else counters[updates]
        key = self.key(DELTAS, num_updates)
        job, sender = self.resident.update(change, key), self.compression.delta_sender
        if sender is None:
            run_now(job)
        else:
            self._ticket = sender.submit(job)

    def wait(self) -> None:
        """Return when an update under way is done."""
        if self._ticket is not None:
            self._ticket.wait()
            self._ticket = None


class _Kept:
    """A unit's replica as a part of a checkpoint, which does not keep the model alive."""

    def __init__(self, socket: ReplicaAllGather) -> None:
        self._socket = weakref.ref(socket)

    def state(self) -> dict[str, Tensor]:
        """See :meth:`Resident.state`."""
        socket = self._socket()
        if socket is None:
            return {}
        socket.wait()
        return socket.resident.state()

    def check(self, state: Mapping[str, Tensor]) -> None:
        """See :meth:`Resident.check`."""
        socket = self._socket()
        if socket is not None:
            socket.resident.check(state)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """See :meth:`Resident.load`."""
        socket = self._socket()
        if socket is not None:
            socket.wait()
            socket.resident.load(state)
