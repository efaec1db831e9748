"""The choice between the lab and loopback."""

from __future__ import annotations

from thinwire.lab.hosts import Lab
from thinwire.lab.layout import Layout
from thinwire.lab.loopback import Loopback
from thinwire.lab.network import Network
from thinwire.lab.privilege import lab_obstacle

__all__ = ["open_network"]


def open_network(hosts: int, ranks_per_host: int, link_bit_per_s: float | None) -> Network:
    """Return a lab where this process may build one, else loopback with a notice for the user.

    Without a rate the lab's links are unshaped; it is still preferred, for its interface counters.

    Raises:
        ConfigError: a number below 1, or a rate that no lab can shape, such as 0.
        LabError: namespaces are permitted, and yet the lab cannot be built.
    """
    layout = Layout(hosts=hosts, ranks_per_host=ranks_per_host, link_bit_per_s=link_bit_per_s)
    obstacle = lab_obstacle(shaped=link_bit_per_s is not None)
    if obstacle is None:
        return Lab(layout)
    lost = "bytes are not counted by an interface"
    if link_bit_per_s is not None:
        lost = f"the link is not shaped to the requested rate, and {lost}"
    return Loopback(
        layout, notice=f"no lab of network namespaces here: {obstacle}. Over loopback {lost}."
    )
