"""With and without the privilege: a lab, or a sentence why not and the run over loopback."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys

import pytest

from lab_permission import NEEDS_LAB, OBSTACLE
from thinwire.errors import ConfigError, LabError
from thinwire.lab import Lab, Loopback, iproute, lab_obstacle, open_network, privilege
from thinwire.lab.namespace import Namespace

NEEDS_ROOT = "it needs root (the capabilities CAP_SYS_ADMIN and CAP_NET_ADMIN)"

# linux/capability.h, linux/prctl.h
CAP_NET_ADMIN, CAP_SYS_ADMIN, PR_CAPBSET_DROP = 12, 21, 24


def test_the_choice_follows_the_obstacle() -> None:
    with open_network(2, 1, 1e8) as network:
        if OBSTACLE is None:
            assert isinstance(network, Lab)
            assert network.notice is None
            assert network.link_bit_per_s == 1e8
            assert len(network.counters()) == 2
        else:
            assert isinstance(network, Loopback)
            assert network.notice is not None
            assert OBSTACLE in network.notice


@pytest.mark.parametrize(("hosts", "ranks", "rate"), [(0, 1, None), (-1, 1, None), (2, 0, None)])
def test_impossible_layouts_are_refused_first(hosts: int, ranks: int, rate: float | None) -> None:
    with pytest.raises(ConfigError, match="1 or more"):
        open_network(hosts, ranks, rate)


def test_a_link_of_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match="rate is 0 bit/s"):
        open_network(2, 1, 0.0)


def without(*capabilities: int) -> str:
    """Ask for the obstacle in a process that lacks these capabilities for good."""
    drop = f"""
import ctypes, os, sys
for capability in {capabilities!r}:
    assert ctypes.CDLL(None).prctl({PR_CAPBSET_DROP}, capability, 0, 0, 0) == 0
ask = "from thinwire.lab import open_network; print(open_network(2, 1, 1e8).notice)"
os.execv(sys.executable, [sys.executable, "-c", ask])
"""
    done = subprocess.run(
        [sys.executable, "-c", drop], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


class TestDropped:
    pytestmark = NEEDS_LAB

    @pytest.mark.parametrize("capability", [CAP_SYS_ADMIN, CAP_NET_ADMIN])
    def test_either_capability_is_needed(self, capability: int) -> None:
        notice = without(capability)
        assert NEEDS_ROOT in notice
        assert "the link is not shaped to the requested rate" in notice


def test_a_missing_program_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(iproute, "_SYSTEM_FOLDERS", "")
    assert lab_obstacle(shaped=False) == "the program ip and tc is not installed (package iproute2)"


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EPERM, "needs root"),
        (errno.ENOSPC, r"user\.max_net_namespaces"),
        (errno.EINVAL, "CONFIG_NET_NS"),
        (errno.EMFILE, "Too many open files"),
    ],
)
def test_refusals_of_the_kernel_are_put_in_words(
    number: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Namespace) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Namespace, "__init__", refuse)
    obstacle = lab_obstacle(shaped=True)
    assert obstacle is not None
    assert re.search(words, obstacle)


class TestKernelWithoutShaper:
    pytestmark = NEEDS_LAB

    def test_only_a_shaped_lab_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # A queueing discipline that no kernel has stands for one that this kernel lacks.
        monkeypatch.setattr(privilege, "shaping", lambda rate: "nonesuch")
        assert lab_obstacle(shaped=False) is None
        obstacle = lab_obstacle(shaped=True)
        assert obstacle is not None
        assert obstacle.startswith("this kernel lacks a part of it: tc refused ")


def test_a_lab_that_cannot_be_built_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Namespace) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("thinwire.lab.opening.lab_obstacle", lambda shaped: None)
    monkeypatch.setattr(Namespace, "__init__", refuse)
    with pytest.raises(LabError, match="refuses a network namespace"):
        open_network(2, 1, None)
