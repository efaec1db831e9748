"""Bits move to the parameters that need them, on all ranks alike, within the budget."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import thinwire as tw
from small_models import SmallModel, draw_tokens, make_model, token_loss
from thinwire.errors import ConfigError
from thinwire.recipes import parse_recipe
from thinwire.sharding import ledger_of
from world import run_world

MEAN_BITS = 6.5
ADAPTIVE = f"adaptive_bits={MEAN_BITS}:adaptive_every=3:min_numel=0:compute=fp32"
TEXTS = [
    f"ddp:grads=int4/32:{ADAPTIVE}",
    f"zero2:grads=int4/32:weights=fp32:{ADAPTIVE}",
    f"zero3:grads=int4/32+stochastic:weights=int8/32:{ADAPTIVE}:feedback=true",
]
WITHIN_ERROR = "ddp:grads=int4/32:min_numel=0:adaptive_error=0.05"


def steps_body(rank: int, size: int, text: str, num_steps: int) -> list[dict[str, Any]]:
    """The ledger of every step, and a hash of the weights after it."""
    model = tw.shard(make_model(), parse_recipe(text))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    found = []
    for step in range(num_steps):
        ledger_of(model).reset()
        token_loss(model, draw_tokens(step, rank)).backward()  # type: ignore[no-untyped-call]
        report = tw.ledger(model)
        optimizer.step()
        optimizer.zero_grad()
        sent = {entry["name"]: entry for entry in report["collectives"]}
        found.append(
            {
                "chosen": report["chosen_formats"],
                "formats": set(sent["reduce_scatter"]["formats"]),
                "bytes": sent["reduce_scatter"]["across_bytes"],
                "weights": [whole(p).double().sum().item() for p in model.parameters()],
            }
        )
    return found


def whole(parameter: Tensor) -> Tensor:
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter


@pytest.mark.parametrize("text", TEXTS)
def test_formats_differ_by_parameter_and_change_at_the_same_step_everywhere(text: str) -> None:
    size = 3
    ranks = run_world(steps_body, size, text, 7)
    for per_rank in zip(*ranks, strict=True):
        assert all(found["chosen"] == per_rank[0]["chosen"] for found in per_rank)
        assert all(found["weights"] == per_rank[0]["weights"] for found in per_rank)
    steps = ranks[0]
    # alike in the first step, chosen after it and after every third
    assert len(set(steps[0]["chosen"].values())) == 1
    assert len(set(steps[1]["chosen"].values())) > 1
    assert steps[1]["chosen"] == steps[2]["chosen"]
    assert steps[3]["chosen"] == steps[4]["chosen"] == steps[5]["chosen"]
    for found in steps:
        # what travels exactly is there too
        assert found["formats"] == set(found["chosen"].values()) | {"fp32"}


def test_bytes_keep_to_the_mean() -> None:
    text = TEXTS[1] + ":exact=*norm*|*bias"
    ranks = run_world(steps_body, 2, text, 5)
    model = make_model()
    adapted = {n: p.numel() for n, p in model.named_parameters() if p.dim() > 1}
    exact_numel = sum(p.numel() for _, p in model.named_parameters()) - sum(adapted.values())
    assert ranks[0][0]["chosen"].keys() == adapted.keys()
    for step in range(5):
        sent_bytes = sum(found[step]["bytes"] for found in ranks)
        # of two ranks each sends the other's slot: together every parameter once
        assert sent_bytes <= MEAN_BITS / 8 * sum(adapted.values()) + 4 * exact_numel
        assert sent_bytes >= 0.8 * MEAN_BITS / 8 * sum(adapted.values())


HYBRID = f"hsdp:grads=int4/32:weights=fp32:{ADAPTIVE}"


def hybrid_body(rank: int, size: int, tail: str) -> list[list[dict[str, Any]]]:
    """With threads beside compute and without."""
    runs = []
    for overlap in (True, False):
        model = tw.shard(make_model(), parse_recipe(HYBRID + tail), overlap=overlap)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        found = []
        for step in range(6):
            torch.autograd.backward(token_loss(model, draw_tokens(step, rank)))
            optimizer.step()
            optimizer.zero_grad()
            found.append(
                {
                    "chosen": tw.ledger(model)["chosen_formats"],
                    "weights": [whole(p).double().sum().item() for p in model.parameters()],
                }
            )
        runs.append(found)
    return runs


@pytest.mark.parametrize(("size", "ranks_per_host"), [(4, 2), (3, 1)])
@pytest.mark.parametrize("tail", ["", ":staleness=1", ":grads_within=int8/32:feedback=true"])
def test_averages_across_hosts_adapt_alike_on_all(
    size: int, ranks_per_host: int, tail: str
) -> None:
    ranks = run_world(hybrid_body, size, tail, ranks_per_host=ranks_per_host)
    for runs in ranks:
        # hosts that chose differently would drift apart, or hang
        assert all(run == ranks[0][0] for run in runs)
    chosen = [set(found["chosen"].values()) for found in ranks[0][0]]
    # after the first step, and after the third
    assert len(chosen[0]) > 1
    assert ranks[0][0][0]["chosen"] == ranks[0][0][1]["chosen"]


def hybrid_bytes_body(rank: int, size: int) -> int:
    model = tw.shard(make_model(), parse_recipe(f"{HYBRID}:exact=*norm*|*bias"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(2):
        ledger_of(model).reset()
        torch.autograd.backward(token_loss(model, draw_tokens(step, rank)))
        optimizer.step()
        optimizer.zero_grad()
    return tw.ledger(model)["across_bytes"]


def test_bytes_across_hosts_keep_to_the_mean_under_hybrid() -> None:
    """Of P elements two hosts send each other P in all, there, and the averages of as many back."""
    sent_bytes = sum(run_world(hybrid_bytes_body, 4, ranks_per_host=2))
    model = make_model()
    numel = sum(p.numel() for p in model.parameters() if p.dim() > 1)
    exact_numel = sum(p.numel() for p in model.parameters()) - numel
    assert sent_bytes <= 2 * (MEAN_BITS / 8 * numel + 4 * exact_numel)
    assert sent_bytes >= 2 * 0.8 * MEAN_BITS / 8 * numel


def uneven_model() -> SmallModel:
    """A model in which the gradients of one matrix are a hundred times smaller than others."""
    model = make_model()
    with torch.no_grad():
        for block in model.blocks:
            block.get_parameter("down.weight").mul_(0.01)
    return model


def errors_body(rank: int, size: int, texts: list[str]) -> list[float]:
    """For every recipe the relative error of averaged gradients, after formats were chosen."""
    return [_error(rank, size, text) for text in texts]


def _error(rank: int, size: int, text: str) -> float:
    model = tw.shard(uneven_model(), parse_recipe(text))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for _ in range(2):
        model.zero_grad()
        token_loss(model, draw_tokens(0, rank)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    reference = uneven_model()
    for other in range(size):
        (token_loss(reference, draw_tokens(0, other)) / size).backward()  # type: ignore[no-untyped-call]
    ours, exact = gradients(model), gradients(reference)
    return float((ours - exact).norm() / exact.norm())


def gradients(model: nn.Module) -> Tensor:
    found = [parameter.grad for parameter in model.parameters()]
    return torch.cat([gradient.flatten() for gradient in found if gradient is not None])


def test_as_many_bytes_lose_less_than_with_equal_bits() -> None:
    """int4/32 takes 5 bits per element, scales included."""
    equal = "ddp:grads=int4/32:min_numel=0"
    texts = [equal, f"{equal}:adaptive_bits=5.1", WITHIN_ERROR]
    without, adapted, within = run_world(errors_body, 2, texts)[0]
    assert adapted < 0.8 * without
    # a slot's error, and that of the averaged result: two independent parts of 0.05 at most each,
    # seen by one rank in a slot, so a little more in all
    assert within < 0.1


def variants_body(rank: int, size: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    named = steps_body(rank, size, TEXTS[0] + ":grads_for=*embed*>int8/64", 3)
    return named, steps_body(rank, size, TEXTS[0] + ":warmup_steps=2", 4)


def test_what_is_named_keeps_its_format_and_warm_up_ends_with_a_choice() -> None:
    named, warmed = run_world(variants_body, 2)[0]
    assert "embed.weight" not in named[2]["chosen"]
    assert "int8/64" in named[2]["formats"]
    assert warmed[0]["formats"] == warmed[1]["formats"] == {"fp32"}
    assert len(warmed[2]["formats"]) > 2


def resumed_body(rank: int, size: int) -> tuple[dict[str, str], dict[str, str]]:
    steps = steps_body(rank, size, TEXTS[0], 4)
    saved = tw.shard(make_model(), parse_recipe(TEXTS[0]))
    optimizer = torch.optim.SGD(saved.parameters(), lr=0.05)
    for step in range(3):
        token_loss(saved, draw_tokens(step, rank)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    resumed = tw.shard(make_model(), parse_recipe(TEXTS[0]))
    tw.load_compression_state(resumed, tw.compression_state(saved))
    return tw.ledger(resumed)["chosen_formats"], steps[3]["chosen"]


def test_a_run_goes_on_in_the_formats_that_it_was_saved_with() -> None:
    for resumed, steady in run_world(resumed_body, 2):
        assert resumed == steady
        assert len(set(resumed.values())) > 1


REFUSED = {
    "ddp:grads=int4/32:adaptive_bits=1.5:min_numel=0": "raise the mean bits",
    "ddp:grads=int4/32:adaptive_bits=5:exact=*": "every parameter travels exactly",
    "ddp:grads=int4/32:adaptive_bits=5:local_steps=2": "local_steps=2",
    "zeropp:adaptive_bits=5:grads_within=int8": "all ranks are on one host",
    "hsdp:adaptive_bits=5": "all ranks are on one host",
}


def refused_body(rank: int, size: int) -> dict[str, str]:
    """What is said of every recipe."""
    said = {}
    for text in REFUSED:
        with pytest.raises(ConfigError) as caught:
            tw.shard(make_model(), parse_recipe(text))
        said[text] = str(caught.value)
    return said


def test_what_would_not_be_in_effect_is_refused() -> None:
    for said in run_world(refused_body, 2, ranks_per_host=2):
        for text, told in REFUSED.items():
            assert told in said[text]
