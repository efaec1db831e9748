"""The held port: nobody gets it by chance, rank 0 gets it by name."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

from lab_permission import NEEDS_LAB
from thinwire.lab import Lab, Layout, Loopback
from thinwire.lab.port import held_port

LAYOUT = Layout(hosts=2, ranks_per_host=1)


def test_rank_0_can_listen_on_it() -> None:
    with (
        held_port(Loopback(LAYOUT)) as port,
        socket.create_server(("", port)),  # sets SO_REUSEADDR, as TCPStore does
        socket.create_connection(("127.0.0.1", port), 5) as client,
    ):
        assert client.getpeername()[1] == port


def test_two_launches_get_two_ports() -> None:
    network = Loopback(LAYOUT)
    with held_port(network) as one, held_port(network) as other:
        assert one != other


def test_it_is_free_again_afterwards() -> None:
    with held_port(Loopback(LAYOUT)) as port:
        pass
    with socket.create_server(("127.0.0.1", port)) as server:
        assert server.getsockname()[1] == port


class TestUnderPressure:
    """In a namespace whose range of free ports is small, so that chance is no excuse."""

    pytestmark = NEEDS_LAB

    PORTS = range(40_000, 40_004)

    def restrict(self) -> None:
        limits = f"{self.PORTS[0]} {self.PORTS[-1]}"
        Path("/proc/sys/net/ipv4/ip_local_port_range").write_text(limits, encoding="ascii")

    def bind_any(self) -> set[int]:
        """Bind to port 0 until there is no port left; return what was given."""
        given = set()
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            while True:
                listener = stack.enter_context(socket.socket())
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(("", 0))
                listener.listen()
                given.add(listener.getsockname()[1])
        return given

    def connect_any(self, port: int) -> set[int]:
        """Connect until there is no port left to connect from; return what was given."""
        given = set()
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            server = stack.enter_context(socket.create_server(("127.0.0.1", port)))
            while True:
                client = stack.enter_context(socket.create_connection(server.getsockname(), 5))
                given.add(client.getsockname()[1])
        return given

    def test_nobody_gets_it_by_chance(self) -> None:
        with Lab(LAYOUT) as lab:
            lab.run(0, self.restrict)
            with held_port(lab) as port:
                assert port in self.PORTS
                assert lab.run(0, self.bind_any) == set(self.PORTS) - {port}
                assert port not in lab.run(0, lambda: self.connect_any(port - 1000))
                # And still it can be had by name.
                lab.run(0, lambda: socket.create_server((lab.address(0), port))).close()
