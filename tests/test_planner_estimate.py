"""Estimates: a published transfer, exact bytes, and the rate below which a format pays."""

from __future__ import annotations

import dataclasses
import math

import pytest

from thinwire.errors import ConfigError, FormatError
from thinwire.formats import parse_format
from thinwire.planner.cost import transfer_s
from thinwire.planner.estimate import DEFAULT_FORMATS, estimate
from thinwire.planner.hardware_file import load_device, load_link

LINK = load_link("ideal", {"bit_per_s": 100e6, "latency_s": 10e-3})
CPU = load_device("cpu")


def test_a_published_transfer() -> None:
    """1e6 parameters over 100 Mbit/s and 10 ms: fp32 0.330 s, bare 8-bit codes 0.090 s."""
    rows = {str(row.format): row for row in estimate(1_000_000, LINK, CPU).rows}
    assert rows["fp32"].transfer_s == pytest.approx(0.330, abs=5e-4)
    scales_s = 8 * (rows["int8/128"].payload_bytes - 1_000_000) / 100e6
    assert rows["int8/128"].transfer_s - scales_s == pytest.approx(0.090, abs=5e-4)
    # a tenth of the values as fp32 without their positions: 0.042 s
    assert transfer_s(LINK, 4 * 100_000) == pytest.approx(0.042, abs=5e-4)


def test_bytes_are_those_of_the_format() -> None:
    for count in (1, 127, 128, 129, 1_000_003):
        for row in estimate(count, LINK, CPU).rows:
            assert row.payload_bytes == row.format.wire_bytes(count)


def test_the_document() -> None:
    document = estimate(1000, LINK, CPU).to_json()
    assert [row["format"] for row in document["rows"]] == [
        str(parse_format(text)) for text in DEFAULT_FORMATS
    ]
    keys = {"format", "payload_bytes", "transfer_s", "codec_s", "total_s", "pays_below_bit_per_s"}
    for row in document["rows"]:
        assert set(row) == keys
        assert row["total_s"] == row["transfer_s"] + row["codec_s"]


def test_a_format_is_as_fast_as_fp32_where_it_is_said_to_be() -> None:
    count = 1_000_000
    for row in estimate(count, LINK, CPU).rows:
        rate = row.pays_below_bit_per_s
        if rate is None or math.isinf(rate):
            continue
        for factor, pays in ((0.99, True), (1.01, False)):
            link = dataclasses.replace(LINK, bit_per_s=factor * rate)
            fast = transfer_s(link, row.payload_bytes) + row.codec_s
            assert (fast < transfer_s(link, 4 * count)) == pays, row.format


def test_what_saves_nothing_never_pays() -> None:
    rows = {str(row.format): row for row in estimate(10, LINK, CPU, ("fp32", "bf16")).rows}
    assert rows["fp32"].pays_below_bit_per_s is None
    assert rows["fp32"].codec_s == 0


def test_loss_slows_all_formats() -> None:
    lossy = load_link("tcp", {"bit_per_s": 100e6, "latency_s": 10e-3, "loss": 0.01})
    clean = estimate(1_000_000, LINK, CPU).rows
    for row, slow in zip(clean, estimate(1_000_000, lossy, CPU).rows, strict=True):
        assert slow.transfer_s > row.transfer_s


def test_where_a_format_pays_does_not_depend_on_the_link_it_is_asked_of() -> None:
    """Under loss too, where a connection is held below the rate of its link."""
    for loss in (0.0, 1e-4, 0.01):
        said = set()
        for rate in (1e8, 1e9, 1e10, 1e11):
            numbers = {"bit_per_s": rate, "latency_s": 10e-3, "loss": loss}
            link = load_link("tcp", numbers)
            whole, half = estimate(1_000_000, link, CPU, ("fp32", "bf16")).rows
            assert half.pays_below_bit_per_s is not None
            assert (half.total_s < whole.total_s) == (rate < half.pays_below_bit_per_s)
            said.add(half.pays_below_bit_per_s)
        assert len(said) == 1, loss
        # 71 Mbit/s at most with 1 packet in 10,000 lost: half the bytes save time on any link
        assert math.isinf(said.pop()) == (loss > 0)


def test_wrong_input_is_refused() -> None:
    with pytest.raises(ConfigError, match="0 parameters"):
        estimate(0, LINK, CPU)
    with pytest.raises(ConfigError, match="no format to estimate"):
        estimate(1, LINK, CPU, ())
    with pytest.raises(FormatError, match="unknown format 'int9'"):
        estimate(1, LINK, CPU, ("int9",))
