"""PyTorch's sockets for sharded training, one file per socket.

model = thinwire.shard(model, recipe)      wrap and compress
thinwire.compress(model, recipe)           compress what is wrapped already
thinwire.ledger(model)                     the bytes it sent
"""

from thinwire.sharding.attach import compress, ledger, ledger_of, shard

__all__ = ["compress", "ledger", "ledger_of", "shard"]
