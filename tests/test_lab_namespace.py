"""Anonymous namespaces: separate networks, and the caller never leaves its own."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from lab_permission import NEEDS_LAB
from thinwire.lab.namespace import Namespace

pytestmark = NEEDS_LAB


def identity() -> str:
    return os.readlink("/proc/thread-self/ns/net")


def test_the_task_runs_elsewhere_and_the_caller_stays() -> None:
    here = identity()
    with Namespace() as one, Namespace() as other:
        assert len({here, one.run(identity), other.run(identity)}) == 3
        assert one.run(identity) == one.run(identity)
    assert identity() == here


def test_an_error_comes_back_and_the_caller_stays() -> None:
    here = identity()

    def fail() -> None:
        raise KeyError("inside")

    with Namespace() as namespace, pytest.raises(KeyError, match="inside"):
        namespace.run(fail)
    assert identity() == here


def test_a_socket_stays_in_its_namespace() -> None:
    # Two listeners of one address and port can only be on two networks.
    def listen() -> socket.socket:
        return socket.create_server(("0.0.0.0", 29999))

    with (
        Namespace() as one,
        Namespace() as other,
        one.run(listen) as first,
        other.run(listen) as second,
    ):
        assert first.getsockname() == second.getsockname()


def test_no_thread_and_no_descriptor_is_left() -> None:
    threads, descriptors = threading.active_count(), set(os.listdir("/proc/self/fd"))
    with Namespace() as namespace:
        namespace.run(identity)
    assert threading.active_count() == threads
    assert set(os.listdir("/proc/self/fd")) == descriptors


def test_the_descriptor_is_not_inherited() -> None:
    # A child that kept it would keep the namespace after its parent's death.
    with Namespace() as namespace:
        assert not os.get_inheritable(namespace.descriptor)


def test_closing_twice_is_harmless() -> None:
    descriptors = set(os.listdir("/proc/self/fd"))
    namespace = Namespace()
    namespace.close()
    namespace.close()
    assert set(os.listdir("/proc/self/fd")) == descriptors
