"""A rank of `test_comm_broadcast`: broadcasts ten times, and prints its ledger and its interface's.

Usage: broadcasting_rank.py ELEMENTS
"""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist

from thinwire.comm import stock
from thinwire.comm.ledger import Ledger
from thinwire.comm.topology import discover_topology
from thinwire.lab import read_interface


def main() -> None:
    dist.init_process_group("gloo")
    assert dist.group.WORLD is not None
    peers, ledger = discover_topology().peers(dist.group.WORLD), Ledger()
    values = torch.zeros(int(sys.argv[1]))
    interface = os.environ["GLOO_SOCKET_IFNAME"]
    before = read_interface(interface).sent_bytes
    for _ in range(10):
        stock.broadcast([values], peers, ledger)
    dist.barrier()
    counted = read_interface(interface).sent_bytes - before
    found = {"ledger": ledger.report()["sent_bytes"], "interface": counted}
    sys.stdout.write(json.dumps(found) + "\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
