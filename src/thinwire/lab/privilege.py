"""Whether this process may build a lab here, found out by trying."""

from __future__ import annotations

import errno
import sys

from thinwire.errors import LabError
from thinwire.lab.iproute import find_program, run_batch
from thinwire.lab.namespace import Namespace
from thinwire.lab.shaping import shaping

__all__ = ["lab_obstacle"]

_PROBE_BIT_PER_S = 1e8
_NEEDS_ROOT = "it needs root (the capabilities CAP_SYS_ADMIN and CAP_NET_ADMIN)"


def lab_obstacle(*, shaped: bool) -> str | None:
    """Return why no lab can be built here, in words, or None when it can.

    A capability or a kernel option can be there and yet be of no use (containers filter system
    calls), so a namespace with a bridge, a veth pair and, when `shaped`, a token bucket filter is
    made and dropped. It takes some 20 ms.
    """
    if sys.platform != "linux":
        return f"network namespaces are a feature of Linux, and this is {sys.platform}"
    missing = [name for name in ("ip", "tc") if find_program(name) is None]
    if missing:
        return f"the program {' and '.join(missing)} is not installed (package iproute2)"
    try:
        with Namespace() as namespace:
            run_batch(
                namespace,
                "ip",
                ["link add br0 type bridge", "link add port0 type veth peer name eth0"],
            )
            if shaped:
                run_batch(
                    namespace, "tc", [f"qdisc add dev port0 root {shaping(_PROBE_BIT_PER_S)}"]
                )
    except OSError as error:
        return _refusal(error)
    except LabError as error:
        if "not permitted" in str(error):
            return _NEEDS_ROOT
        return f"this kernel lacks a part of it: {error}"
    return None


def _refusal(error: OSError) -> str:
    if error.errno == errno.EPERM:
        return _NEEDS_ROOT
    if error.errno == errno.ENOSPC:
        return "the limit of network namespaces is reached (sysctl user.max_net_namespaces)"
    if error.errno in (errno.EINVAL, errno.ENOSYS):
        return "this kernel was built without network namespaces (CONFIG_NET_NS)"
    return f"the kernel refuses a network namespace: {error.strerror}"
