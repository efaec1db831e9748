"""Hardware: believable presets, every number with a source, files that take precedence."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clear_sentence import check_clear
from thinwire.errors import ConfigError
from thinwire.planner.curve import Curve
from thinwire.planner.hardware_file import (
    device_names,
    load_backend,
    load_device,
    load_host,
    load_link,
)
from thinwire.planner.request import ClusterRequest, PlanRequest
from thinwire.planner.source import SOURCES, kind_of, least_sure
from thinwire.recipes import parse_recipe

# what machines of these years are like; a card's bandwidth wrong by a factor of 1,000 falls out
RANGES = {
    "memory_bytes": (8e9, 300e9),
    "memory_bytes_per_s": (5e9, 10e12),
    "kernel_s": (1e-7, 1e-4),
    "host_bytes_per_s": (1e9, 1e11),
    "within_bytes_per_s": (1e9, 1e12),
    "within_efficiency": (0.3, 1.0),
    "within_latency_s": (1e-6, 1e-3),
    "context_bytes": (1e8, 2e9),
    "slack": (0.0, 0.3),
}


@pytest.mark.parametrize("name", device_names())
def test_presets_are_believable(name: str) -> None:
    device = load_device(name)
    for attribute, (low, high) in RANGES.items():
        value = getattr(device, attribute)
        assert value is None or low <= value <= high, attribute
    for rate in device.flop_per_s.values():
        assert 1e10 <= rate <= 3e15
    assert max(device.flop_per_s.values()) >= device.flop_per_s["fp32"]
    # between one and 700 FLOPs for a byte: nothing computes without memory, or the other way round
    assert 1 <= max(device.flop_per_s.values()) / device.memory_bytes_per_s <= 700


@pytest.mark.parametrize("name", device_names())
def test_every_number_has_a_source(name: str) -> None:
    device = load_device(name)
    numbers = {item.name for item in dataclasses.fields(device)} - {"name", "kind", "sources"}
    assert numbers <= set(device.sources)
    assert {kind_of(text) for text in device.sources.values()} <= set(SOURCES)


def test_the_least_sure_source_is_told() -> None:
    assert least_sure(["calibrated", "datasheet: a page"]) == "datasheet"
    assert least_sure(["published: x", "assumed"]) == "assumed"


def test_a_number_without_a_source_is_refused() -> None:
    device = load_device("cpu")
    with pytest.raises(ConfigError, match="kernel_s has no source"):
        dataclasses.replace(
            device, sources={k: v for k, v in device.sources.items() if k != "kernel_s"}
        )
    with pytest.raises(ConfigError, match="must begin with one of"):
        dataclasses.replace(device, sources={**device.sources, "kernel_s": "hearsay"})


CLUSTER_FILE = """
[cluster]
hosts = 4
ranks_per_host = 2
[device]
preset = "cpu"
flop_per_s = { fp32 = 41e9, bf16 = 12e9 }
source = "calibrated: two cores"
[link]
bit_per_s = 2e8
latency_s = 1e-4
protocol = "tcp"
efficiency = [[1e4, 0.5], [1e6, 0.9]]
source = "calibrated"
[backend]
preset = "gloo"
ring_share = 0.9
source = "calibrated"
[host]
memory_bytes = 24e9
"""


def test_a_file_replaces_presets_and_options_replace_the_file(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(CLUSTER_FILE)
    cluster = ClusterRequest(file=file).cluster()
    assert (cluster.hosts, cluster.ranks_per_host) == (4, 2)
    assert cluster.device.flop_per_s["fp32"] == 41e9
    assert cluster.device.sources["flop_per_s"] == "calibrated: two cores"
    assert cluster.link.efficiency.at(1e4) == 0.5
    assert cluster.backend.ring_share == 0.9
    assert cluster.host.memory_bytes == 24e9
    assert cluster.host.sources["memory_bytes"] == "given"
    # what the file does not say is the preset's
    assert cluster.device.kernel_s == load_device("cpu").kernel_s
    given_here = ClusterRequest(file=file, link="1gbit", hosts=2).cluster()
    assert (given_here.hosts, given_here.link.bit_per_s) == (2, 1e9)
    assert given_here.link.sources["bit_per_s"] == "given"
    assert given_here.link.sources["efficiency"] == "calibrated"


def test_another_device_leaves_the_files_device_out(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(CLUSTER_FILE)
    assert ClusterRequest(file=file, device="l4").cluster().device == load_device("l4")


@pytest.mark.parametrize("device", ["cpu", "a100-40gb"])
def test_a_loss_means_the_same_in_a_file_and_as_an_option(device: str, tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(f"[device]\npreset = '{device}'\n[link]\nloss = 0.05\n")
    in_file = ClusterRequest(file=file, hosts=2, link="1gbit").cluster().link
    as_option = ClusterRequest(device=device, loss=0.05, hosts=2, link="1gbit").cluster().link
    assert in_file == as_option
    assert in_file.protocol == "tcp"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[machine]\n", "'machine' is not one of its tables"),
        ("[device]\nspeed = 3\n", "'speed' is not one of"),
        ("[device]\nkernel_s = 'fast'\n", "not of the right form"),
        ("[device]\nkernel_s = true\n", "not of the right form"),
        ("[device]\nkernel_s = -1\n", "kernel_s is -1"),
        ("[device]\nmatmul_efficiency = [[1, 2]]\n", "a share of 2"),
        ("[device]\nmatmul_efficiency = [[5, 0.1], [1, 0.2]]\n", "must rise"),
        ("[device]\npreset = 'abacus'\n", "device: preset 'abacus': not known; use one of"),
        ("[backend]\npreset = 'mpi'\n", "backend: preset 'mpi': not known; use one of"),
        ("[link]\nprotocol = 'pigeon'\n", "link: protocol 'pigeon': not known; use one of"),
        ("[cluster]\nhosts = 'two'\n", "hosts = 'two' is not a whole number above zero"),
        ("[cluster]\nhosts = 2.5\n", "hosts = 2.5 is not a whole number"),
        ("[cluster]\nhost = 4\n", "'host' is not one of hosts, ranks_per_host, shaped"),
        ("[link]\npreset = 'tcp'\n", "'preset' is not one of"),
        ("[backend]\nshares = { foo = [[1e3, 0.5]] }\n", "'foo' is not one of all_gather"),
        ("[backend]\nreduce_scatter_passes = 0\n", "backend gloo: reduce_scatter_passes is 0"),
        ("[backend]\nreduce_scatter_passes = 1.5\n", "must be a whole number"),
        ("[device]\nflop_per_s = { fp33 = 1e9 }\n", "'fp33' is not one of"),
        ("[device]\nunit_s = { stock = 1.0 }\nsource = 'calibrated'\n", "calibrate again"),
        ("[cluster]\nhosts = " + "1" * 5000 + "\n", "not a TOML file"),
        ("[cluster]\nhosts = " + "[" * 100_000 + "\n", "not a TOML file"),
        ("not toml", "not a TOML file"),
        ("", "says nothing; give a hardware file"),
        ("# a comment\n", "says nothing; give a hardware file"),
        ("\ufeff[cluster]\n", "save it as UTF-8 without"),
        ("[cluster]\n[cluster]\n", "Cannot declare 'cluster' twice"),
        (
            "[[cluster]]\nhosts = 2\n",
            r"cluster = \[{hosts = 2}\] must be one table: write \[cluster\]",
        ),
        ("cluster = 5\n", r"cluster = 5 must be one table: write \[cluster\] once"),
        ("[cluster]\nhosts = -4\n", "cluster: hosts = -4 is not a whole number above zero"),
        (
            "[cluster]\nhosts = 10000000000\n",
            "hosts = 10000000000 is too large: give 1,000,000,000",
        ),
        ("[device]\nkernel_s = 2020-01-01\n", "kernel_s = 2020-01-01 is not of the right form"),
        ("[device]\nkernel_s = 1e300\n", r"kernel_s = 1e\+300 is beyond any machine: give"),
        ("[device]\nflop_per_s = { fp32 = -1 }\n", "fp32 is -1, but must be above 0"),
        ("[device]\nflop_per_s = {}\n", "device cpu: flop_per_s is empty; give a rate"),
        (
            "[device]\nmatmul_efficiency = [[1, 0.5, 3]]\n",
            r"entry 1 is \[1, 0.5, 3\], but must be a pair",
        ),
        ("[device]\nmatmul_efficiency = [[1, 'a']]\n", "matmul_efficiency: entry 1.2 = 'a' is not"),
        ("[device]\nsource = 'hearsay'\n", "device: source = 'hearsay' must begin with one of"),
        (
            "[device]\ncodec = { encode_copies = { int = 0 } }\n",
            "codec: encode_copies: int is 0, but",
        ),
        (
            "[device]\nlow_rank = { pair_s = 0.1 }\n",
            "low_rank: matrix_s, element_copies, factor_copies, pair_copies are missing; give",
        ),
        ("[link]\nbit_per_s = 'fast'\n", "link: bit_per_s = 'fast' is not of the right form"),
        ("[link]\nloss = 2\n", "link: a loss of 2 lets nothing through"),
        ("[backend]\ncalls_s = { rounds = -1 }\n", "calls_s: rounds is -1, but must be at least 0"),
        ("[backend]\nring_share = 2\n", "backend gloo: ring_share is 2, but must be at most 1"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(text: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=told) as raised:
        ClusterRequest(file=file).cluster()
    check_clear(raised.value, f"cluster file {file}: ")


def test_the_fault_of_an_option_is_not_laid_on_the_file(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(CLUSTER_FILE)
    for request in (
        ClusterRequest(file=file, hosts=0),
        ClusterRequest(file=file, loss=2.0),
        ClusterRequest(file=file, link="fast"),
    ):
        with pytest.raises(ConfigError) as raised:
            request.cluster()
        assert str(file) not in str(raised.value)
    # what the options replace is looked at all the same
    file.write_text(CLUSTER_FILE.replace("bit_per_s = 2e8", "bit_per_s = -1"))
    with pytest.raises(ConfigError, match="link: bit_per_s is -1"):
        ClusterRequest(file=file, link="1gbit").cluster()


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (ClusterRequest(hosts=2), "2 hosts need a link between them: give --link"),
        (ClusterRequest(hosts=0), "0 hosts: at least 1"),
        (ClusterRequest(ranks=0), "0 ranks per host: at least 1"),
        (ClusterRequest(hosts=2, link="100"), "unit"),
        (ClusterRequest(hosts=2, link="1gbit", loss=1.0), "a loss of 1.0 lets nothing through"),
        (ClusterRequest(hosts=2, link="1gbit", loss=-0.1), "loss is -0.1"),
        (
            ClusterRequest(hosts=2, link="1gbit", loss=0.1, protocol="ideal"),
            "an ideal link loses nothing",
        ),
        (ClusterRequest(device="a100"), "device 'a100': not known; use one of a100-40gb"),
        (ClusterRequest(file=Path("no-such.toml")), "cannot be read"),
    ],
)
def test_a_wrong_cluster_says_what_is_wrong(request_: ClusterRequest, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        request_.cluster()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"tp": 3}, "not divisible by tp x pp = 3 x 1"),
        ({"pp": 3}, "not divisible by tp x pp = 1 x 3"),
        ({"tp": 8}, "tp = 8 must divide the 4 ranks of a host"),
        ({"tp": 0}, "tp = 0: at least 1"),
        ({"micro_batch": 0}, "micro_batch = 0: at least 1"),
        ({"accumulate": -1}, "accumulate = -1: at least 1"),
        ({"seq": 0}, "sequence length 0"),
        ({"model": "gpt:2x64x2", "pp": 8}, "the model has only 2 layers"),
    ],
)
def test_impossible_shapes_are_refused(changes: dict[str, int], told: str) -> None:
    cluster = ClusterRequest(hosts=8, ranks=4, device="a100-40gb", link="100gbit")
    fields = {"model": "gpt:24x64x2", "cluster": cluster, **changes}
    with pytest.raises(ConfigError, match=told):
        PlanRequest(**fields).setting()  # type: ignore[arg-type]


def test_a_dtype_that_a_device_lacks_is_refused() -> None:
    for name in device_names():
        device = load_device(name)
        for dtype in {"fp32", "bf16", "fp16"} - set(device.flop_per_s):
            with pytest.raises(ConfigError, match=f"no matrix products in {dtype}: use ") as raised:
                device.peak(dtype)
            advised = re.findall(r"compute=\w+", str(raised.value))
            assert advised
            for field in advised:  # can be typed
                assert parse_recipe(f"zero3:{field}").compute in device.flop_per_s
    only_fp16 = load_device("cpu", {"flop_per_s": {"fp16": 1e12}})
    with pytest.raises(ConfigError, match="use another device"):
        only_fp16.peak("bf16")


@given(
    points=st.lists(
        st.tuples(st.floats(1, 1e12), st.floats(0.01, 1)),
        min_size=1,
        max_size=6,
        unique_by=lambda point: round(point[0], 3),
    ),
    size=st.floats(0.1, 1e13),
)
def test_a_curve_stays_between_its_points(points: list[tuple[float, float]], size: float) -> None:
    curve = Curve(tuple(sorted(points)))
    shares = [share for _, share in points]
    assert min(shares) - 1e-12 <= curve.at(size) <= max(shares) + 1e-12
    for point, share in points:
        assert curve.at(point) == pytest.approx(share, rel=1e-9)


def test_hosts_and_backends_load() -> None:
    assert load_host("cpu").adam_parameters_per_s < load_host("accelerator").adam_parameters_per_s
    assert load_backend("gloo").reduce_scatter_passes == 2
    assert load_backend("nccl").reduce_scatter_passes == 1
    with pytest.raises(ConfigError, match="latency_s is missing"):
        load_link("tcp", {"bit_per_s": 1e9})
