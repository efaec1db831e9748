"""What every rank of a world needs, done once in the server that ranks are forked from.

Importing what FSDP2 first uses (`torch._dynamo`), loading kernels and starting Numba takes a rank
most of a second of processor time, several times what the body of a usual test takes.
"""

from __future__ import annotations

import torch
import torch._dynamo
import torch.distributed.fsdp

import thinwire.sharding  # noqa: F401 - the ranks' bodies use it
from thinwire.formats import parse_format
from thinwire.wire.preparation import prepare

# One family starts Numba for all; what others need is loaded in hundredths of a second.
prepare([parse_format("int4/128")], (torch.float32,))
