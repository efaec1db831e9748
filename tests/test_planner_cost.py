"""Costs: closed forms of the literature, limits, and that nothing gets cheaper by being worse."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner_settings import accelerators, cluster_of
from thinwire.formats import parse_format
from thinwire.planner.call import CodecWork
from thinwire.planner.cost import (
    call_s,
    mathis_bytes_per_s,
    padhye_bytes_per_s,
    stage_link_s,
    tensor_parallel_s,
    transfer_s,
    work_s,
)
from thinwire.planner.hardware import Backend
from thinwire.planner.hardware_file import load_device, load_link
from thinwire.planner.layer_calls import LayerCalls
from thinwire.planner.traffic import recipe_traffic
from thinwire.recipes import parse_recipe

LINK = load_link("ideal", {"bit_per_s": 1e9, "latency_s": 1e-3})
LOSSY = load_link("tcp", {"bit_per_s": 1e9, "latency_s": 5e-3, "loss": 0.01})


def free_backend(backend: Backend) -> Backend:
    return dataclasses.replace(
        backend, has_tree=False, ring_share=1.0, rounds_share=1.0, message_s=0.0, call_s=0.0
    )


def test_a_transfer_is_alpha_plus_n_beta() -> None:
    assert transfer_s(LINK, 1e6) == pytest.approx(1e-3 + 8e6 / 1e9, rel=1e-12)


@pytest.mark.parametrize("world", [2, 4, 8])
def test_a_ring_is_the_closed_form(world: int) -> None:
    """(W - 1) * (alpha + S / (W * B)) for S bytes in all."""
    cluster = cluster_of("a100-40gb", hosts=world, ranks=1, bit_per_s=1e9, backend="nccl")
    cluster = dataclasses.replace(cluster, backend=free_backend(cluster.backend))
    setting = dataclasses.replace(accelerators(hosts=world, ranks=1), cluster=cluster)
    calls = LayerCalls(setting.layers()[0], parse_recipe("zero3"), setting.group, 0, 1)
    call = calls.gather()
    whole_bytes = world * 2 * calls.slot_numel
    link = cluster.link
    expected = (world - 1) * (link.latency_s + whole_bytes / (world * link.bytes_per_s))
    assert call_s(call, cluster) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("hosts", "ranks", "recipe", "stock_passes", "algorithm"),
    [
        (2, 1, "qsdp", 2, "rounds"),
        (3, 1, "qsdp", 2, "rounds"),
        (1, 2, "qsdp", 2, "rounds"),
        (2, 2, "qsdp", 2, "ring"),
        (1, 3, "qsdp", 2, "ring"),
        (3, 1, "qsdp", 1, "ring"),  # nccl
        (3, 1, "zero3", 2, "ring"),  # PyTorch's own
    ],
)
def test_a_gather_goes_as_the_collective_sends_it(
    hosts: int, ranks: int, recipe: str, stock_passes: int, algorithm: str
) -> None:
    # as test_comm_collectives has it of the collective
    setting = accelerators(hosts=hosts, ranks=ranks)
    layer = setting.layers()[0]
    calls = LayerCalls(layer, parse_recipe(recipe), setting.group, 0, stock_passes)
    assert calls.gather().algorithm == algorithm


def test_a_group_of_one_costs_nothing() -> None:
    setting = accelerators(hosts=1, ranks=1)
    calls = LayerCalls(setting.layers()[0], parse_recipe("zero3"), setting.group, 0, 1)
    assert call_s(calls.gather(), setting.cluster) == 0


def test_the_ranks_of_a_host_share_its_link() -> None:
    """An all-to-all in one hop sends R times as much through a host's link as one in two hops."""
    setting = accelerators(hosts=4, ranks=4)
    one = recipe_traffic(setting, parse_recipe("zero2:grads=int4/128")).layers[0].reduce
    two = (
        recipe_traffic(setting, parse_recipe("zero2:grads=int4/128:grads_within=int8/128"))
        .layers[0]
        .reduce
    )
    (across,) = (call for call in two if call.group.is_across)
    (single,) = one
    assert across.group.sharers * across.egress_bytes == pytest.approx(single.egress_bytes / 4)


def test_mathis_is_the_limit_of_padhye_for_few_losses() -> None:
    # the timeout term is of order p, so at 1e-6 it adds 3e-5 of the rate
    assert padhye_bytes_per_s(0.01, 1e-6) == pytest.approx(mathis_bytes_per_s(0.01, 1e-6), rel=1e-3)
    assert padhye_bytes_per_s(0.01, 0.1) < mathis_bytes_per_s(0.01, 0.1)


def test_loss_slows_tcp_to_padhyes_rate() -> None:
    rate = 1e6 / (transfer_s(LOSSY, 1e6) - LOSSY.latency_s)
    assert rate == pytest.approx(padhye_bytes_per_s(2 * LOSSY.latency_s, 0.01), rel=1e-12)


def test_loss_without_congestion_control_is_sent_again() -> None:
    link = load_link("rdma", {"bit_per_s": 1e9, "latency_s": 1e-3, "loss": 0.2})
    clean = dataclasses.replace(link, loss=0.0)
    moving = transfer_s(clean, 1e7) - link.latency_s
    assert transfer_s(link, 1e7) - link.latency_s == pytest.approx(moving / 0.8, rel=1e-12)


@given(size=st.floats(1, 1e12), more=st.floats(1, 100), rate=st.floats(1e6, 1e12))
def test_more_bytes_or_a_slower_link_never_take_less(size: float, more: float, rate: float) -> None:
    for protocol in ("ideal", "tcp", "rdma", "grpc"):
        link = load_link(protocol, {"bit_per_s": rate, "latency_s": 1e-4})
        assert transfer_s(link, size * more) >= transfer_s(link, size) * (1 - 1e-12)
        faster = dataclasses.replace(link, bit_per_s=2 * rate)
        assert transfer_s(faster, size) < transfer_s(link, size)


def test_codecs_are_priced_in_copies() -> None:
    device = load_device("cpu")
    copy_s = 1e6 / device.copy_elements_per_s
    for text, copies in (
        ("int4/128", device.codec.encode_copies["int"]),
        ("int4/128+stochastic", device.codec.encode_copies["stochastic"]),
        ("e4m3/128", device.codec.encode_copies["fp8"]),
        ("bf16", device.codec.encode_copies["cast"]),
        ("topk=0.01", device.codec.encode_copies["topk"]),
        ("log4/128", device.codec.encode_copies["log"]),
        ("sign/128", device.codec.encode_copies["sign"]),
        ("int4/128+hadamard", device.codec.encode_copies["hadamard"]),
        ("int4/128+levels", device.codec.encode_copies["levels"]),
        ("int4/128+clip=95", device.codec.encode_copies["clip"]),
        ("int4/128+clip=95+hadamard", device.codec.encode_copies["clip"]),
    ):
        work = CodecWork("encode", parse_format(text), 1e6)
        assert work_s((work,), device) == pytest.approx(copies * copy_s, rel=1e-12)


def test_small_all_reduces_take_a_tree_where_there_is_one() -> None:
    setting = accelerators("gpt:2x64x2", hosts=64, ranks=1)
    call = LayerCalls(setting.layers()[0], parse_recipe("ddp"), setting.group, 0, 1).all_reduce()[0]
    ring_only = dataclasses.replace(
        setting.cluster, backend=dataclasses.replace(setting.cluster.backend, has_tree=False)
    )
    assert call_s(call, setting.cluster) < call_s(call, ring_only)


def test_tensor_and_pipeline_messages() -> None:
    cluster = accelerators().cluster
    assert tensor_parallel_s(cluster.device, 1, 1e9) == 0
    assert tensor_parallel_s(cluster.device, 8, 1e9) > tensor_parallel_s(cluster.device, 2, 1e9)
    # all four ranks of a host hand on at once, over one link
    expected = cluster.link.latency_s + 4 * 1e6 / cluster.link.bytes_per_s
    assert stage_link_s(cluster, 1e6) == pytest.approx(expected, rel=1e-12)
