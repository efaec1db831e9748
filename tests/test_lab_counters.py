"""Interface counters: read where the caller is, and refused where there is no such interface."""

from __future__ import annotations

import pytest

from thinwire.errors import LabError
from thinwire.lab import HostCounters, read_interface


def test_differences_are_taken_field_by_field() -> None:
    earlier = HostCounters(sent_bytes=10, received_bytes=20)
    later = HostCounters(sent_bytes=15, received_bytes=27)
    assert later.since(earlier) == HostCounters(sent_bytes=5, received_bytes=7)


def test_loopback_counts_both_ways_alike() -> None:
    counters = read_interface("lo")
    assert counters.sent_bytes == counters.received_bytes


def test_a_missing_interface_is_an_error() -> None:
    with pytest.raises(LabError, match="'eth99'"):
        read_interface("eth99")
