"""Published bytes and ratios against the planner's: nothing is fitted, nearly all is exact."""

from __future__ import annotations

import dataclasses

from thinwire.planner.activations import ActivationPlan, layer_activations
from thinwire.planner.group import Parallelism
from thinwire.planner.hardware import Cluster
from thinwire.planner.hardware_file import load_backend, load_device, load_host, load_link
from thinwire.planner.models.gpt import GPTShape, gpt_workload
from thinwire.planner.offload import offload_bytes
from thinwire.planner.prediction import predict
from thinwire.planner.setting import Setting
from thinwire.planner.states import estimated_states_bytes, published_states_bytes
from thinwire.planner.validation.report import Group, Row
from thinwire.quantities import format_count
from thinwire.recipes import parse_recipe

__all__ = ["formula_groups"]

GIB = 2**30
EXACT = 0.005  # what is printed to three digits may be off by half of the last one
ROUNDED = 0.05  # 0.12 GB, printed to two digits

# arXiv 1910.02054, table 1: (parameters, ranks, GB per rank at stages 1, 2, 3)
ZERO_TABLE = (
    (7.5e9, 1, (120, 120, 120)),
    (7.5e9, 4, (52.5, 41.3, 30)),
    (7.5e9, 16, (35.6, 21.6, 7.5)),
    (7.5e9, 64, (31.4, 16.6, 1.88)),
    (7.5e9, 256, (30.4, 15.4, 0.47)),
    (7.5e9, 1024, (30.1, 15.1, 0.12)),
    (128e9, 1, (2048, 2048, 2048)),
    (128e9, 4, (896, 704, 512)),
    (128e9, 16, (608, 368, 128)),
    (128e9, 64, (536, 284, 32)),
    (128e9, 256, (518, 263, 8)),
    (128e9, 1024, (513, 257, 2)),
    (1e12, 1, (16000, 16000, 16000)),
    (1e12, 4, (7000, 5500, 4000)),
    (1e12, 16, (4750, 2875, 1000)),
    (1e12, 64, (4187, 2218, 250)),
    (1e12, 256, (4046, 2054, 62.5)),
    (1e12, 1024, (4011, 2013, 15.6)),
)

# arXiv 2205.05198, figure 1: GiB of activations on the first stage of a pipeline
ACTIVATIONS = (
    ("22B", GPTShape(layers=48, hidden=6144, heads=64), 1, 1, 4, 59.25, 9.5625),
    ("175B", GPTShape(layers=96, hidden=12288, heads=96), 8, 3, 1, 66.84375, 12.3515625),
    ("530B", GPTShape(layers=105, hidden=20480, heads=128), 35, 3, 1, 114.0234375, 23.076171875),
    ("1T", GPTShape(layers=128, hidden=25600, heads=160), 64, 1, 1, 131.25, 26.5625),
)


def formula_groups() -> tuple[Group, ...]:
    """All checks of bytes and ratios."""
    return (
        _zero_states(),
        _activations(),
        _traffic(),
        _offload_traffic(),
        _cpu_adam(),
        _states_only_estimator(),
    )


def _zero_states() -> Group:
    rows = tuple(
        Row(
            name=f"{parameters / 1e9:g}B, {ranks} ranks, stage {stage}",
            published=published,
            predicted=published_states_bytes(parameters, ranks, stage) / 1e9,
        )
        for parameters, ranks, by_stage in ZERO_TABLE
        for stage, published in zip((1, 2, 3), by_stage, strict=True)
    )
    return Group(
        name="ZeRO, bytes of model states per rank",
        source="arXiv 1910.02054, table 1",
        unit="GB",
        rows=rows,
        bound_mean=EXACT,
        bound_max=ROUNDED,
    )


def _activations() -> Group:
    rows = []
    for name, shape, stages, chunks, micro_batch, kept, selective in ACTIVATIONS:
        workload = gpt_workload(shape, tokens=2048, fused=False, dropout=True)
        for mode, sequence, published in (("keep", False, kept), ("selective", True, selective)):
            parallelism = Parallelism(tp=8, pp=stages, interleave=chunks, sequence=sequence)
            plan = ActivationPlan(
                mode=mode, tokens=2048 * micro_batch, element_bytes=2, parallelism=parallelism
            )
            of_stage = shape.layers / stages * layer_activations(workload.layers[0], plan).kept
            predicted = parallelism.in_flight * of_stage / GIB
            rows.append(Row(name=f"{name}, {mode}", published=published, predicted=predicted))
    return Group(
        name="Activations with tensor parallelism 8",
        source="arXiv 2205.05198, figure 1; statistics of norms are not in the paper's count",
        unit="GiB",
        rows=tuple(rows),
        bound_mean=EXACT,
        bound_max=2 * EXACT,
    )


def _traffic() -> Group:
    """Bytes across hosts in units of the model's, embeddings left out as the papers do."""
    rows = []
    for name, recipe, published in (
        ("ZeRO, stages 0 to 2: 2M", "zero2", 2.0),
        ("ZeRO, stage 3: 3M", "zero3", 3.0),
        ("ZeRO++: 0.75M", "zeropp:grads_within=int4/2048:grads=int4/2048:weights=int8/2048", 0.75),
    ):
        setting = _one_rank_a_host(128)
        layer_bytes = 2 * sum(run.count * run.numel for run in setting.layers())
        sent = predict(setting, parse_recipe(recipe)).sent.across_bytes
        share = (setting.group.size - 1) / setting.group.size
        rows.append(Row(name=name, published=published, predicted=sent / layer_bytes / share))
    rows.append(_hybrid_sharding(128, 8))
    return Group(
        name="Traffic across hosts per rank and step, in model sizes",
        source="arXiv 1910.02054, section 7; 2306.10209, table 1; 2304.11277; scales add to theirs",
        unit="M",
        rows=tuple(rows),
        bound_mean=0.03,
        bound_max=0.05,
    )


def _hybrid_sharding(hosts: int, per_host: int) -> Row:
    """Shards within a host, reduced across: 2M (W-1) / (G W) (arXiv 2304.11277, section 3.2.2).

    The paper's (W-1)/W stands for the ring's share; with H hosts in the ring it is (H-1)/H.
    """
    setting = _one_rank_a_host(hosts)
    cluster = dataclasses.replace(setting.cluster, ranks_per_host=per_host)
    setting = dataclasses.replace(setting, cluster=cluster)
    layer_bytes = 2 * sum(run.count * run.numel for run in setting.layers())
    sent = predict(setting, parse_recipe("zero3:hybrid=true")).sent.across_bytes
    world = hosts * per_host
    return Row(
        name="FSDP, hybrid: 2M / G",
        published=2 / per_host * (world - 1) / world,
        predicted=sent / layer_bytes,
    )


def _one_rank_a_host(hosts: int) -> Setting:
    device = load_device("a100-80gb")
    cluster = Cluster(
        hosts=hosts,
        ranks_per_host=1,
        device=device,
        host=load_host(device.kind),
        link=load_link("ideal", {"bit_per_s": 1e11, "latency_s": 2e-5}),
        backend=load_backend("nccl"),
    )
    shape = GPTShape(layers=40, hidden=6144, heads=48, vocabulary=256, tied=True)
    return Setting(workload=gpt_workload(shape, tokens=512), cluster=cluster)


def _offload_traffic() -> Group:
    return Group(
        name="ZeRO-Offload, bytes between device and host in a step",
        source="arXiv 2101.06840, section 3",
        unit="bytes per parameter",
        rows=(Row(name="4M", published=4.0, predicted=offload_bytes(1.0)),),
        bound_mean=0.0,
        bound_max=0.0,
    )


def _cpu_adam() -> Group:
    """Seconds of CPU-Adam grow with the parameters; the rate is fitted on the first row."""
    published = ((1e9, 0.22), (4e9, 1.03), (10e9, 2.57))
    host = load_host("accelerator")
    fitted = dataclasses.replace(host, adam_parameters_per_s=published[0][0] / published[0][1])
    rows = tuple(
        Row(
            name=f"{parameters / 1e9:g}B",
            published=seconds,
            predicted=parameters / fitted.adam_parameters_per_s,
            is_fitted=index == 0,
        )
        for index, (parameters, seconds) in enumerate(published)
    )
    return Group(
        name="CPU-Adam",
        source="arXiv 2101.06840, table 4",
        unit="seconds",
        rows=rows,
        free=f"{format_count(fitted.adam_parameters_per_s)} parameters a second, fitted on 1B",
        bound_max=0.15,
    )


def _states_only_estimator() -> Group:
    """ZeRO-3 states of 6805M parameters on 4 devices of one host, as an estimator printed them."""
    published = (
        ("parameters and optimizer offloaded", "all", 0.49, 171.13),
        ("optimizer offloaded", "states", 3.66, 152.11),
        ("nothing offloaded", "none", 29.01, 2.93),
    )
    rows = []
    for name, offload, device, host in published:
        predicted = estimated_states_bytes(6805e6, 131e6, 4, offload)
        for place, number, size in (
            ("device", device, predicted.device),
            ("host", host, predicted.host),
        ):
            rows.append(Row(name=f"{name}, {place}", published=number, predicted=size / GIB))
    return Group(
        name="A states-only estimator, for comparison",
        source="a public report; activations, gather buffers and the allocator are left out, which "
        "were measured to add 14 GiB and more",
        unit="GiB",
        rows=tuple(rows),
        bound_mean=EXACT,
        bound_max=2 * EXACT,
    )
