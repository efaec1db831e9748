"""A calibration: fits find a machine that is known, repeats are judged, files are read back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_samples import (
    ADAM_PER_S,
    CALL_S,
    CODEC_S,
    COPIED_BYTES_PER_S,
    LATENCY_S,
    LINK_BYTES_PER_S,
    LOW_RANK_PRICES,
    PEAK,
    WAYS,
    made_samples,
)
from thinwire.errors import ConfigError, InputError, RankError
from thinwire.lab import Layout
from thinwire.planner.hardware import DECODED_KINDS, Cluster
from thinwire.planner.request import ClusterRequest
from thinwire.train.calibration.calibration import (
    Calibration,
    CalibrationRequest,
    calibrate,
    judge,
)
from thinwire.train.calibration.fit import least_squares
from thinwire.train.calibration.sample import Sample, read_samples, slowest, write_samples
from thinwire.train.calibration.wires import SMALLEST_BYTES, message_sizes

HOSTS = Layout(hosts=3, ranks_per_host=1, link_bit_per_s=8 * LINK_BYTES_PER_S)
REQUEST = CalibrationRequest(layout=HOSTS, rounds=2)
EXACT = 1e-6  # samples without noise: only rounding is left


def judged(*rounds: float) -> Calibration:
    samples = made_samples(HOSTS, rounds=rounds or (1.0, 1.0))
    return judge(samples, REQUEST, link_bit_per_s=8 * LINK_BYTES_PER_S)


def written(calibration: Calibration, folder: Path) -> Cluster:
    file = folder / "hardware.toml"
    calibration.write(file)
    return ClusterRequest(file=file).cluster()


class TestLeastSquares:
    @given(
        st.lists(st.floats(1e-9, 1e3), min_size=2, max_size=2),
        st.lists(st.floats(1, 1e6), min_size=4, max_size=8, unique=True),
    )
    def test_finds_what_made_the_rows(self, wanted: list[float], sizes: list[float]) -> None:
        rows = [(1.0, size) for size in sizes]
        seconds = [wanted[0] + wanted[1] * size for size in sizes]
        found = least_squares(rows, seconds)
        for row, second in zip(rows, seconds, strict=True):
            # the coefficients may be ill-conditioned, what they predict may not
            assert found[0] + found[1] * row[1] == pytest.approx(second, rel=1e-6)

    def test_no_coefficient_is_negative(self) -> None:
        # a line through these points would start below zero
        assert least_squares([(1, 1), (1, 2), (1, 3)], [0.5, 2.0, 3.5])[0] == 0.0


class TestFit:
    def test_finds_the_machine(self, tmp_path: Path) -> None:
        device = written(judged(), tmp_path).device
        assert device.flop_per_s == pytest.approx(PEAK, rel=1e-3)
        assert device.kernel_s == pytest.approx(1e-5, rel=1e-3)
        assert device.adam_parameters_per_s == pytest.approx(ADAM_PER_S, rel=1e-3)
        # numbers in the file have six digits
        copies = CODEC_S * COPIED_BYTES_PER_S / 8
        for priced in (device.codec.encode_copies, device.codec.decode_copies):
            assert priced == pytest.approx(dict.fromkeys(priced, copies), rel=1e-4)
        assert set(device.codec.sum_copies) == set(DECODED_KINDS)
        assert device.low_rank == pytest.approx(LOW_RANK_PRICES, rel=1e-3)

    def test_finds_the_link(self, tmp_path: Path) -> None:
        cluster = written(judged(), tmp_path)
        assert cluster.link.bytes_per_s == pytest.approx(LINK_BYTES_PER_S, rel=1e-5)
        assert cluster.link.latency_s == pytest.approx(LATENCY_S, rel=1e-4)
        assert cluster.backend.call_s == pytest.approx(CALL_S, rel=1e-4)
        assert set(cluster.backend.calls_s) == set(cluster.backend.shares)
        for call_s in cluster.backend.calls_s.values():
            assert call_s == pytest.approx(CALL_S, rel=1e-4)
        for way, curve in cluster.backend.shares.items():
            _, share = WAYS["exchange" if way == "rounds" else way]
            assert curve.at(1 << 20) == pytest.approx(share, rel=1e-4)

    def test_what_steps_take_beyond_is_python(self, tmp_path: Path) -> None:
        device = written(judged(), tmp_path).device
        # made steps take 50 ms and 10 ms a layer; the planner explains part of both
        for kind, seconds in device.unit_s.items():
            assert 0 < seconds < 0.01, kind
            assert device.step_s[kind] < 0.05

    def test_every_number_is_said_to_be_calibrated(self, tmp_path: Path) -> None:
        cluster = written(judged(), tmp_path)
        for part, number in (
            (cluster.device, "flop_per_s"),
            (cluster.link, "bit_per_s"),
            (cluster.backend, "call_s"),
        ):
            assert part.sources[number].startswith("calibrated: ")

    def test_residuals_vanish_without_noise(self) -> None:
        # steps were made up, not of parts that add up; test_calibration_steps fits those
        for residual in judged().hardware.residuals:
            if residual.part == "training steps":
                continue
            assert residual.largest < EXACT, residual.part


class TestJudgement:
    def test_equal_rounds_do_not_scatter(self) -> None:
        found = judged(1.0, 1.0)
        assert not found.unsteady
        assert max(figure.scatter for figure in found.figures) < EXACT

    def test_rounds_apart_are_refused_by_name(self) -> None:
        found = judged(1.0, 2.0)
        assert "AdamW, parameters/s" in {figure.name for figure in found.unsteady}
        scatters = [figure.scatter for figure in found.unsteady]
        assert scatters == sorted(scatters, reverse=True)
        assert found.to_json()["steady"] is False

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"rounds": 1}, "2 or more"),
            ({"tolerance": 0.0}, "tolerance"),
            ({"shortest_s": -1.0}, "shortest_s"),
        ],
    )
    def test_a_request_that_proves_nothing(self, change: dict[str, float], words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            CalibrationRequest(layout=HOSTS, **change)  # type: ignore[arg-type]

    def test_a_file_that_cannot_be_written(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="may write to"):
            judged().write(tmp_path / "missing" / "hardware.toml")


class TestSamples:
    def test_survive_a_file(self, tmp_path: Path) -> None:
        samples = tuple(made_samples(HOSTS))
        write_samples(tmp_path / "rank-0.json", samples)
        assert read_samples(tmp_path / "rank-0.json") == samples

    def test_the_slowest_rank_counts_round_by_round(self) -> None:
        ranks = [
            [Sample(figure="copy", case="", size=1, seconds=seconds)]
            for seconds in ((1.0, 4.0), (3.0, 2.0))
        ]
        assert slowest(ranks)[0].seconds == (3.0, 4.0)

    def test_ranks_that_measured_different_things(self) -> None:
        ranks = [[Sample(figure="copy", case="", size=n, seconds=(1.0,))] for n in (1, 2)]
        with pytest.raises(RankError, match="different"):
            slowest(ranks)

    @pytest.mark.parametrize("text", ["", "[1]", '[{"figure": "copy"}]', "{}"])
    def test_a_file_of_something_else(self, tmp_path: Path, text: str) -> None:
        file = tmp_path / "rank-0.json"
        file.write_text(text)
        if text == "{}":
            assert read_samples(file) == ()  # nothing was measured
            return
        with pytest.raises(RankError):
            read_samples(file)

    @pytest.mark.parametrize("seconds", [(), (0.0,), (1.0, -1.0)])
    def test_no_measurement(self, seconds: tuple[float, ...]) -> None:
        with pytest.raises(ConfigError, match="no measurement"):
            Sample(figure="copy", case="", size=1, seconds=seconds)


@given(st.one_of(st.none(), st.floats(1e6, 1e12)), st.integers(1, 64))
def test_message_sizes_rise_and_are_whole_elements(rate: float | None, senders: int) -> None:
    sizes = message_sizes(rate, senders)
    assert sizes[0] == SMALLEST_BYTES
    assert list(sizes) == sorted(set(sizes))
    assert all(size % 64 == 0 for size in sizes)


def test_two_ranks_measure_and_the_planner_reads_it(tmp_path: Path) -> None:
    """The whole way, with measurements too short to mean anything."""
    heard: list[str] = []
    request = CalibrationRequest(
        layout=Layout(hosts=1, ranks_per_host=2), rounds=2, shortest_s=1e-4, tolerance=1e9
    )
    found = calibrate(request, tell=heard.append)
    assert any("round 2 of 2" in text for text in heard)
    cluster = written(found, tmp_path)
    assert cluster.world == 2
    assert cluster.device.within_bytes_per_s > 0
    assert cluster.device.step_s.keys() == cluster.device.unit_s.keys()
