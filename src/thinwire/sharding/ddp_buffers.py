"""DDP's buffers, such as a BatchNorm's averages: rank 0's become everyone's before every forward.

DDP broadcasts them by itself, out of the ledger, and where a rank is gone ends in the backend's
error. Here the same values travel the same way, counted, and a lost peer has a name. What is
plugged in has underscores in its name; there is no other socket for it.
"""

from __future__ import annotations

import weakref

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _BufferCommHookLocation

from thinwire.comm import stock
from thinwire.comm.ledger import Ledger
from thinwire.comm.topology import Topology
from thinwire.errors import ConfigError

__all__ = ["attach_buffers"]


class BufferHook:
    """Makes the first rank's buffers those of all ranks.

    Args:
        model: the DDP module.
        topology: which ranks share a host.
        ledger: where bytes are recorded.
    """

    def __init__(self, model: DistributedDataParallel, topology: Topology, ledger: Ledger) -> None:
        self._model = weakref.ref(model)
        self._peers = topology.peers(model.process_group)
        self._ledger = ledger

    def __call__(self, buffers: dict[str, Tensor]) -> None:
        """Broadcast all buffers that DDP would."""
        model = self._model()
        if model is not None and model._join_config.enable:
            # DDP then takes those of a rank that still has data, and does not say which that is
            raise ConfigError(
                "torch.distributed.algorithms.Join and buffers: which rank's buffers count is not "
                "known to thinwire; wrap the model with broadcast_buffers=False, or let all ranks "
                "take as many steps"
            )
        stock.broadcast(list(buffers.values()), self._peers, self._ledger)


def attach_buffers(model: DistributedDataParallel, topology: Topology, ledger: Ledger) -> None:
    """Have buffers counted, unless there are none or they have a hook of the user's.

    Args:
        model: the DDP module.
        topology: which ranks share a host.
        ledger: where bytes are recorded.
    """
    if any(True for _ in model.module.buffers()) and not hasattr(model, "buffer_hook"):
        hook = BufferHook(model, topology, ledger)
        model._register_buffer_comm_hook(hook, _call_hook, _BufferCommHookLocation.PRE_FORWARD)


def _call_hook(hook: BufferHook, buffers: dict[str, Tensor]) -> None:
    """DDP passes the state it was given, here the hook itself, before the buffers."""
    hook(buffers)
