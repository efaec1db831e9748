"""A port for the ranks' rendezvous that no other program takes meanwhile."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from thinwire.lab.network import Network

__all__ = ["held_port"]


@contextmanager
def held_port(network: Network) -> Iterator[int]:
    """Reserve a TCP port of host 0 for the block, and yield its number.

    The socket is bound with SO_REUSEADDR and never listens. While it is open the kernel gives the
    port to no one who asks for any free port, neither by binding to port 0 nor by connecting, while
    rank 0, whose store names the port and sets SO_REUSEADDR too, can listen on it. Closing the
    socket first and hoping that nobody comes in between would be the usual race.
    """
    with network.run(0, lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((network.address(0), 0))
        yield holder.getsockname()[1]
