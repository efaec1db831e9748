"""Formats of single parameters are in effect in every socket, and touch no other parameter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import thinwire as tw
from small_models import draw_tokens, make_model, token_loss
from thinwire.recipes import parse_recipe
from world import run_world

BASE = "min_numel=0:compute=fp32"
SOCKETS = [
    ("ddp:{grads}", 1),
    ("zero2:{grads}:weights=fp32", 1),
    ("zero3:{grads}:weights=fp32", 1),
    # residual and two hops: both hops take the format of a pattern
    ("zero3:{grads}:weights=fp32:grads_within=int8/32:feedback=true", 2),
]
USUAL = "grads=int4/32"
MIXED = "grads=int4/32:grads_for=*embed*>int8/64|*up*>bf16|*0.down*>topk=0.1"


def gradients_body(
    rank: int, size: int, texts: list[str]
) -> list[tuple[dict[str, Tensor], set[str]]]:
    """For every recipe the gradients of a second pass by name, and the formats that travelled."""
    found = []
    for text in texts:
        model = tw.shard(make_model(), parse_recipe(text))
        for step in range(2):
            model.zero_grad()
            token_loss(model, draw_tokens(step, rank)).backward()  # type: ignore[no-untyped-call]
        (entry,) = (e for e in tw.ledger(model)["collectives"] if e["name"] == "reduce_scatter")
        found.append((gradients(model), set(entry["formats"])))
    return found


def gradients(model: nn.Module) -> dict[str, Tensor]:
    found = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        assert gradient is not None
        whole = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
        found[name.removeprefix("module.")] = whole
    return found


@pytest.mark.parametrize(("socket", "per_host"), SOCKETS)
def test_every_parameter_travels_as_if_its_format_were_for_all(socket: str, per_host: int) -> None:
    kinds = (MIXED, USUAL, "grads=int4/32:grads_for=*>int8/64")
    texts = [f"{socket.format(grads=grads)}:{BASE}" for grads in kinds]
    answers = run_world(gradients_body, 2 * per_host, texts, ranks_per_host=per_host)
    (mixed, formats), (usual, _), (named, _) = answers[0]
    within = {"int8/32"} if per_host > 1 else set()
    assert formats == {"int4/32", "int8/64", "bf16", "topk=0.1", "fp32"} | within
    for name, gradient in mixed.items():
        if "embed" in name:
            assert torch.equal(gradient, named[name])
        elif "up" not in name and "0.down" not in name:
            assert torch.equal(gradient, usual[name])
        elif "bias" not in name:
            assert not torch.equal(gradient, usual[name])


def outputs_body(rank: int, size: int, texts: list[str]) -> list[tuple[Tensor, set[str]]]:
    """What models compute from gathered weights, and the formats that these travelled in."""
    found = []
    for text in texts:
        model = tw.shard(make_model(), parse_recipe(text))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(2):
            token_loss(model, draw_tokens(step, rank)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            output = model(draw_tokens(9, rank))
        (entry,) = (e for e in tw.ledger(model)["collectives"] if e["name"] == "all_gather")
        found.append((output, set(entry["formats"])))
    return found


@pytest.mark.parametrize("base", ["zero3:weights=int4/32", "thin:replica=rank/fp32"])
def test_weights_travel_in_formats_of_their_own(base: str) -> None:
    rules = ("", ":weights_for=*embed*>int8/64|*norm*>int2/32:strict=false")
    texts = [f"{base}:{BASE}:grads=fp32{rule}" for rule in rules]
    (usual, _), (mixed, formats) = run_world(outputs_body, 2, texts)[0]
    # a norm travels exactly, whatever patterns say
    assert "int8/64" in formats
    assert "int2/32" not in formats
    assert not torch.equal(mixed, usual)
