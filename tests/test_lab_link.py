"""The link measures what was requested, or the difference is an error."""

from __future__ import annotations

import time

import pytest

from lab_permission import NEEDS_LAB
from thinwire.errors import LabError
from thinwire.lab import Lab, Layout, LinkRates, Loopback, check_link, link, measure_link


def lab(link_bit_per_s: float | None, hosts: int = 2) -> Lab:
    return Lab(Layout(hosts=hosts, ranks_per_host=1, link_bit_per_s=link_bit_per_s))


def rates(forward: float, backward: float) -> LinkRates:
    return LinkRates(forward_bit_per_s=forward, backward_bit_per_s=backward)


class TestShaped:
    pytestmark = NEEDS_LAB

    @pytest.mark.parametrize("requested", [5e6, 50e6, 200e6, 1e9])
    def test_measured_is_requested(self, requested: float) -> None:
        with lab(requested) as network:
            measured = measure_link(network)
        assert measured is not None
        check_link(requested, measured)

    def test_a_link_is_shaped_both_ways_and_between_all_hosts(self) -> None:
        with lab(100e6, hosts=3) as network:
            for sender, receiver in ((0, 2), (2, 1)):
                rate = link._one_way(network, sender=sender, receiver=receiver)
                assert abs(rate / 100e6 - 1) < link.TOLERANCE

    def test_a_measurement_is_brief(self) -> None:
        with lab(200e6) as network:
            start_s = time.perf_counter()
            link._both_ways(network)
            # 0.65 s each way, and room for a busy machine.
            assert time.perf_counter() - start_s < 2.5

    def test_what_the_machine_cannot_shape_is_an_error(self) -> None:
        # No two processes on one machine exchange 1 Tbit/s through TCP.
        with lab(1e12) as network:
            measured = measure_link(network)
        with pytest.raises(
            LabError, match=r"requested at 1 Tbit/s and measures .*leave --link out"
        ):
            check_link(1e12, measured)

    def test_an_unshaped_link_is_measured_as_it_is(self) -> None:
        with lab(None) as network:
            measured = measure_link(network)
        assert measured is not None
        # Slower than any machine moves memory, faster than any rate that a test shapes.
        assert measured.bit_per_s > 1e9
        check_link(None, measured)


class ShapedLoopback(Loopback):
    """Pretends to be shaped, so that what follows a measurement is tested without a lab."""

    @property
    def link_bit_per_s(self) -> float | None:
        return self.layout.link_bit_per_s


def test_a_wrong_rate_is_measured_three_times_and_the_closest_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries = iter([rates(50e6, 100e6), rates(80e6, 85e6), rates(60e6, 60e6), rates(100e6, 100e6)])
    monkeypatch.setattr(link, "_both_ways", lambda network: next(tries))
    network = ShapedLoopback(Layout(hosts=2, ranks_per_host=1, link_bit_per_s=100e6))
    assert measure_link(network) == rates(80e6, 85e6)


def test_a_right_rate_ends_the_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = iter([rates(50e6, 100e6), rates(99e6, 101e6)])
    monkeypatch.setattr(link, "_both_ways", lambda network: next(tries))
    network = ShapedLoopback(Layout(hosts=2, ranks_per_host=1, link_bit_per_s=100e6))
    assert measure_link(network) == rates(99e6, 101e6)


def test_loopback_is_measured_as_it_is() -> None:
    network = Loopback(Layout(hosts=2, ranks_per_host=1, link_bit_per_s=1e6))
    measured = measure_link(network)
    assert measured is not None
    # Nothing shapes it, whatever the layout asks for.
    assert measured.bit_per_s > 1e8
    check_link(network.link_bit_per_s, measured)


def test_one_host_has_no_link() -> None:
    assert measure_link(Loopback(Layout(hosts=1, ranks_per_host=4))) is None
    check_link(1e6, None)


@pytest.mark.parametrize(("forward", "backward"), [(0.91, 1.0), (1.0, 1.09)])
def test_within_a_tenth_is_right(forward: float, backward: float) -> None:
    check_link(1e8, rates(forward * 1e8, backward * 1e8))


@pytest.mark.parametrize(("forward", "backward"), [(0.89, 1.0), (1.0, 1.11), (0.0, 1.0)])
def test_either_direction_can_be_wrong_and_both_are_stated(forward: float, backward: float) -> None:
    # Also where the mean of both would pass.
    with pytest.raises(LabError) as caught:
        check_link(1e8, rates(forward * 1e8, backward * 1e8))
    assert "requested at 100 Mbit/s" in str(caught.value)
    assert "one way" in str(caught.value)


class Unreachable(Loopback):
    def address(self, host: int) -> str:
        return "198.18.255.254"  # no interface here has it


def test_hosts_that_do_not_reach_each_other_are_named() -> None:
    with pytest.raises(LabError, match=r"host 0 does not reach host 1 at 198\.18\.255\.254"):
        measure_link(Unreachable(Layout(hosts=2, ranks_per_host=1)))
