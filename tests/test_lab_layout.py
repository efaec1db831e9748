"""Layouts: what is refused, and which host a rank is on."""

from __future__ import annotations

import math

import pytest

from thinwire.errors import ConfigError
from thinwire.lab.layout import MAX_HOSTS, Layout


@pytest.mark.parametrize("count", [0, -1])
def test_counts_below_one_are_refused(count: int) -> None:
    with pytest.raises(ConfigError, match=rf"hosts is {count}; it must be 1 or more"):
        Layout(hosts=count, ranks_per_host=1)
    with pytest.raises(ConfigError, match=rf"ranks per host is {count}; it must be 1 or more"):
        Layout(hosts=1, ranks_per_host=count)


@pytest.mark.parametrize("count", [1.5, True, "2", None])
def test_counts_that_are_no_whole_numbers_are_refused(count: object) -> None:
    with pytest.raises(ConfigError, match="whole number"):
        Layout(hosts=count, ranks_per_host=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf, 9.9e5, 1.1e12])
def test_rates_that_no_link_has_are_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match=r"1 Mbit/s to 1 Tbit/s.*left out"):
        Layout(hosts=2, ranks_per_host=1, link_bit_per_s=rate)


def test_a_bridge_has_so_many_ports() -> None:
    assert Layout(hosts=MAX_HOSTS, ranks_per_host=1).world_size == MAX_HOSTS
    with pytest.raises(ConfigError, match=f"at most {MAX_HOSTS}"):
        Layout(hosts=MAX_HOSTS + 1, ranks_per_host=1)


def test_ranks_are_host_major() -> None:
    layout = Layout(hosts=3, ranks_per_host=2)
    assert layout.world_size == 6
    assert [layout.host_of(rank) for rank in range(6)] == [0, 0, 1, 1, 2, 2]
