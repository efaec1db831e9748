"""PyTorch's sockets for sharded training, one file per socket.

model = thinwire.shard(model, recipe)      wrap and compress
thinwire.compress(model, recipe)           compress what is wrapped already
thinwire.ledger(model)                     the bytes it sent
thinwire.accumulate(model, is_last=...)    one micro-batch of several
thinwire.skip_step(model)                  the step that was just reduced is not taken
thinwire.compression_state(model)          what compression remembers, for a checkpoint
"""

from thinwire.sharding.accumulation import accumulate
from thinwire.sharding.attach import compress, ledger, ledger_of, shard
from thinwire.sharding.skipping import skip_step
from thinwire.sharding.state import (
    blank_compression_state,
    compression_state,
    load_compression_state,
)

__all__ = [
    "accumulate",
    "blank_compression_state",
    "compress",
    "compression_state",
    "ledger",
    "ledger_of",
    "load_compression_state",
    "shard",
    "skip_step",
]
