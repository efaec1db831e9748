"""Hosts made of network namespaces, a shaped link between them, and ranks launched on them.

    with open_network(hosts=4, ranks_per_host=1, link_bit_per_s=200e6) as network:
        if network.notice:
            print(network.notice)
        rates = measure_link(network)
        check_link(network.link_bit_per_s, rates)
        launch(network, [sys.executable, "-m", "thinwire.train.worker", "config.json"])
        print(network.counters())

Everything here is gone when the process is, however it ends, and no clean-up code needs to run
for it: the namespaces are held by open descriptors alone (`namespace`), the ranks are killed by
the kernel with their launcher (`enter`), and what they have started by a guard (`guard`).

Nothing here knows torch.
"""

from thinwire.lab.counters import HostCounters, read_interface
from thinwire.lab.hosts import Lab
from thinwire.lab.launch import launch
from thinwire.lab.layout import Layout
from thinwire.lab.link import LinkRates, check_link, measure_link
from thinwire.lab.loopback import Loopback
from thinwire.lab.network import Network
from thinwire.lab.opening import open_network
from thinwire.lab.privilege import lab_obstacle

__all__ = [
    "HostCounters",
    "Lab",
    "Layout",
    "LinkRates",
    "Loopback",
    "Network",
    "check_link",
    "lab_obstacle",
    "launch",
    "measure_link",
    "open_network",
    "read_interface",
]
