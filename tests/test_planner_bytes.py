"""The plan's bytes are the ledger's, to the byte: real steps, every rank, every kind of recipe."""

from __future__ import annotations

import pytest
import torch

import thinwire as tw
from planner_settings import lab_setting
from thinwire.planner.prediction import predict, sent_by
from thinwire.recipes import parse_recipe
from thinwire.sharding import ledger_of
from thinwire.train.model_spec import parse_model
from thinwire.train.models import build_model, next_token_loss
from world import run_world

# uneven on purpose: 250 and 3 * 250 rows on 3 or 4 ranks leave a short last shard
MODEL, SEQ = "gpt:3x50x5", 12
# DDP rebuilds its buckets, and a replica is first filled, in the first step; local steps meet in
# every second one
SETTLING, STEPS = 2, 2


RECIPES = (
    "ddp",
    "ddp:grads=int4/128",
    "ddp:grads=int4/128:local_steps=2",
    "ddp:grads=int4/128:staleness=1",
    "ddp_powersgd",
    "ddp_topk",
    "ddp_sign:warmup_steps=2",
    "zero2",
    "zero2:weights=int4/128:grads=int4/128",
    "zero2:weights=int8/128:grads=int4/128:feedback=true",
    "zero3",
    "zero3:compute=fp32",
    "zero3:weights=int8/128:grads=int4/64+asym:min_numel=0",
    "zero3:weights=bf16:grads=int8/128:exact=*mlp_in*|blocks.1.*",
    "ddp:grads=int4/128:grads_for=*head*>topk=0.1|blocks.1.*>int2/32",
    "zero3:grads=int4/64:weights_for=*embedding*>int8/64:grads_for=blocks.[02].mlp*>log5/32",
    "sdp4bit:weights_for=*head*>bf16:grads_for=*head*>int8/64",
    "hpz",
    "zeropp",
    "qsdp",
    "sdp4bit",
    "thin",
    "thin:replica=host/bf16",
    "thin:group_bytes=0",
    "zero3:group_bytes=300000",
    "zero1",
    "thin:stage=1",
    "thin:stage=2:replica=host/bf16",
    "hsdp",
    "hsdp:compute=fp32:grads=int4/64:grads_within=int8/64:min_numel=0:exact=none",
    "hsdp:staleness=1",
    "thin:staleness=1",
)
# what a micro-batch that is not the last does, in every stage
ACCUMULATING = (
    "ddp",
    "ddp:accumulate=keep",
    "zero1",
    "zero2",
    "zero2:accumulate=keep",
    "zero3:accumulate=keep",
    "thin",
    "thin:accumulate=keep:replica=host/bf16",
    "thin:stage=1:replica=host/bf16",
    "thin:stage=2:replica=host/bf16",
    "hsdp",
    "hsdp:accumulate=keep",
    "hsdp:accumulate=within:grads_within=int8/64",
    "thin:accumulate=within",
    "zero2:accumulate=within",
    "zero3:accumulate=within:grads=int4/128:feedback=true",
)
MICRO_BATCHES = 3


def ledgers_body(rank: int, size: int) -> dict[str, tuple[float, float]]:
    """For every recipe the bytes within and across hosts of one steady step."""
    return {text: _steady_bytes(text) for text in RECIPES}


def accumulating_body(rank: int, size: int) -> dict[str, tuple[float, float]]:
    """The same for a step of several micro-batches."""
    return {text: _steady_bytes(text, MICRO_BATCHES) for text in ACCUMULATING}


def _steady_bytes(text: str, micro_batches: int = 1) -> tuple[float, float]:
    torch.manual_seed(0)
    model = tw.shard(build_model(parse_model(MODEL, seq_len=SEQ), seq_len=SEQ), parse_recipe(text))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for step in range(STEPS + SETTLING):
        if step == SETTLING:
            ledger_of(model).reset()
        for micro in range(micro_batches):
            tokens = torch.randint(0, 256, (1, SEQ + 1))
            with tw.accumulate(model, is_last=micro == micro_batches - 1):
                torch.autograd.backward(next_token_loss(model, tokens))
        optimizer.step()
        optimizer.zero_grad()
    report = tw.ledger(model)
    return report["within_bytes"] / STEPS, report["across_bytes"] / STEPS


@pytest.mark.parametrize(("hosts", "ranks"), [(3, 1), (2, 2), (1, 3)])
def test_bytes_are_those_of_the_ledger(hosts: int, ranks: int) -> None:
    measured = run_world(ledgers_body, hosts * ranks, ranks_per_host=ranks)
    setting = lab_setting(MODEL, hosts=hosts, ranks=ranks, tokens=SEQ)
    for text in RECIPES:
        recipe = parse_recipe(text)
        predicted = [sent_by(setting, recipe, rank) for rank in range(hosts * ranks)]
        rounded = [(round(sent.within_bytes), round(sent.across_bytes)) for sent in predicted]
        assert rounded == [of_rank[text] for of_rank in measured], text
        worst = round(predict(setting, recipe).sent.total_bytes)
        assert worst == max(sum(of_rank[text]) for of_rank in measured), text


def test_bytes_of_several_micro_batches_are_those_of_the_ledger() -> None:
    measured = run_world(accumulating_body, 4, ranks_per_host=2)
    setting = lab_setting(MODEL, hosts=2, ranks=2, tokens=SEQ, accumulate=MICRO_BATCHES)
    for text in ACCUMULATING:
        predicted = [sent_by(setting, parse_recipe(text), rank) for rank in range(4)]
        rounded = [(round(sent.within_bytes), round(sent.across_bytes)) for sent in predicted]
        assert rounded == [of_rank[text] for of_rank in measured], text


def test_adaptive_bits_are_priced_as_the_narrowest_format_that_takes_the_mean() -> None:
    setting = lab_setting(MODEL, hosts=3, ranks=1, tokens=SEQ)
    # int5/32 takes 6 bits per element, scales included; what has a format of its own keeps it
    adaptive = "zero3:grads=int4/32:grads_for=*head*>bf16:adaptive_bits="
    for bits, fmt in ((5.0, "int4/32"), (5.1, "int5/32"), (6.0, "int5/32"), (9.0, "int8/32")):
        fixed = parse_recipe(f"zero3:grads={fmt}:grads_for=*head*>bf16")
        assert sent_by(setting, parse_recipe(f"{adaptive}{bits}"), 0) == sent_by(setting, fixed, 0)
    within_error = parse_recipe("zero3:grads=int4/32:adaptive_error=0.01")
    widest = parse_recipe("zero3:grads=int8/32")
    assert sent_by(setting, within_error, 0) == sent_by(setting, widest, 0)


def test_traffic_of_the_zero_paper() -> None:
    """2P, 2P and 3P parameters a step, times (W-1)/W (arXiv 1910.02054, section 7)."""
    setting = lab_setting("gpt:4x256x4", hosts=4, ranks=1, tokens=64, backend="nccl")
    size = setting.workload.num_parameters
    ring = (4 - 1) / 4
    for recipe, volume in (("ddp", 2), ("zero1", 2), ("zero2", 2), ("zero3", 3)):
        parsed = parse_recipe(recipe)
        width = 4 if parsed.compute == "fp32" else 2
        sent = predict(setting, parsed).sent.across_bytes
        # the root's second gather, which FSDP2 leaves out, is 4.5 % of this model in stage 3
        assert sent == pytest.approx(volume * ring * width * size, rel=0.02)


def test_traffic_of_zeropp() -> None:
    """3M becomes 0.75M across hosts: 0.5M, nothing, 0.25M (arXiv 2306.10209, table 1)."""
    setting = lab_setting("gpt:24x2048x16", hosts=4, ranks=4, tokens=64, backend="nccl")
    zeropp = parse_recipe("zeropp:grads_within=int4/128:grads=int4/128")
    stock = predict(setting, parse_recipe("zero3")).sent.across_bytes
    # two hops divide what crosses by the ranks of a host; the paper counts a host's bytes
    of_host_stock, gradients = stock, 0.25 / 3 * stock
    sent = predict(setting, zeropp).sent.across_bytes
    assert sent == pytest.approx(0.5 / 3 * of_host_stock + gradients / 4, rel=0.06)
