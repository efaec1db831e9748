"""Gradients one reduction late: exactly those of the step before, reduced behind the next step."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw
from small_models import draw_tokens, make_model, token_loss, train
from thinwire.comm import collectives, exchange
from thinwire.comm.sender import Ticket
from thinwire.errors import ConfigError, StateError
from thinwire.recipes import parse_recipe
from thinwire.sharding.late import LateGradients
from world import run_world

INT4 = "grads=int4/128+stochastic:min_numel=0:compute=fp32:feedback=true"
CASES = [
    f"ddp:{INT4}",
    "ddp:grads=lowrank=2:min_numel=0:feedback=true",
    f"zero2:{INT4}:weights=fp32",
    f"zero3:{INT4}:weights=fp32",
    f"zero3:{INT4}:weights=fp32:grads_within=int8/64",
]
NUM_STEPS = 4


def backward(model: nn.Module, rank: int, step: int) -> Tensor:
    """This rank's gradients: all of them, or its shards."""
    model.zero_grad()
    token_loss(model, draw_tokens(step, rank)).backward()  # type: ignore[no-untyped-call]
    gradients = (p.grad for p in model.parameters() if p.grad is not None)
    return torch.cat([_local(gradient).flatten().clone() for gradient in gradients])


def _local(gradient: Tensor) -> Tensor:
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient


def delayed_body(rank: int, size: int, text: str) -> list[Tensor]:
    """Gradients of the same steps of unchanging weights: in time, late, and late on the spot."""
    answers = []
    for staleness, overlap in ((0, True), (1, True), (1, False)):
        recipe = parse_recipe(f"{text}:staleness={staleness}")
        model = tw.shard(make_model(), recipe, overlap=overlap)
        answers.append(torch.stack([backward(model, rank, step) for step in range(NUM_STEPS)]))
    return answers


@pytest.mark.parametrize("text", CASES)
def test_every_gradient_is_that_of_the_step_before_to_the_bit(text: str) -> None:
    per_host = 2 if "within" in text else 1
    size = 4 if "within" in text else 3
    for in_time, *late in run_world(delayed_body, size, text, ranks_per_host=per_host):
        for gradients in late:
            assert not gradients[0].any()
            assert torch.equal(gradients[1:], in_time[:-1])


def buckets_body(rank: int, size: int, bucket_mb: float) -> Tensor:
    model = DistributedDataParallel(make_model(), bucket_cap_mb=bucket_mb)
    tw.compress(model, parse_recipe(f"{CASES[0]}:staleness=1"))
    # DDP rebuilds its buckets after the first
    return torch.stack([backward(model, rank, step) for step in range(NUM_STEPS)])


def test_it_does_not_matter_how_parameters_share_buckets() -> None:
    answers = [answer for mb in (1e-3, 25.0) for answer in run_world(buckets_body, 2, mb)]
    assert all(torch.equal(answer, answers[0]) for answer in answers)


def overlap_body(rank: int, size: int, text: str) -> list[str]:
    """What happened in which order, with a wire that stands still until the second backward."""
    gate = threading.Event()
    events: list[str] = []
    free: Callable[..., None] = exchange.exchange

    def gated(*args: object) -> None:
        assert gate.wait(60)
        free(*args)
        events.append("sent")

    setattr(collectives, "exchange", gated)  # noqa: B010 - a stand-in of another type
    model = tw.shard(make_model(), parse_recipe(f"{text}:staleness=1"))
    model.zero_grad()
    token_loss(model, draw_tokens(0, rank)).backward()  # type: ignore[no-untyped-call]
    events.append("backward 1")
    loss = token_loss(model, draw_tokens(1, rank))
    events.append("forward 2")
    gate.set()
    loss.backward()  # type: ignore[no-untyped-call]
    events.append("backward 2")
    return events


@pytest.mark.parametrize("text", [CASES[0], CASES[2]])
def test_a_reduction_goes_on_behind_the_next_step(text: str) -> None:
    """With more jobs than the line has room for: none of them stops the backward pass."""
    for events in run_world(overlap_body, 2, text):
        assert events[:3] == ["backward 1", "forward 2", "sent"]
        assert "backward 2" in events


def frozen_body(rank: int, size: int, text: str) -> list[bool | None]:
    """For every step whether a weight moves; it is frozen in the second."""
    model = tw.shard(make_model(), parse_recipe(f"{text}:staleness=1"))
    weight = model.get_parameter("blocks.0.up.weight")
    moves: list[bool | None] = []
    for step in range(4):
        weight.requires_grad_(step != 1)
        backward(model, rank, step)
        moves.append(None if weight.grad is None else bool(_local(weight.grad).any()))
    return moves


def test_a_frozen_parameter_comes_back_with_a_zero() -> None:
    for moves in run_world(frozen_body, 2, CASES[3]):
        # what it had before it was frozen is too old
        assert moves == [False, None, False, True]


class Sometimes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.always = nn.Linear(16, 16)
        self.sometimes = nn.Linear(16, 16)

    def forward(self, x: Tensor, everything: bool) -> Tensor:
        x = self.always(x)
        out: Tensor = self.sometimes(x) if everything else x
        return out


def unused_body(rank: int, size: int) -> list[bool]:
    model = DistributedDataParallel(Sometimes(), find_unused_parameters=True)
    tw.compress(model, parse_recipe("ddp:grads=int8/128:min_numel=0:staleness=1"))
    moved = []
    for step in range(4):
        model.zero_grad()
        model(torch.ones(2, 16), everything=rank == 0 and step < 3).sum().backward()
        gradient = model.module.sometimes.weight.grad
        moved.append(gradient is not None and bool(gradient.any()))
    return moved


def test_a_rank_may_leave_parameters_unused() -> None:
    for moved in run_world(unused_body, 2):
        assert moved[:3] == [False, True, True]


def training_body(rank: int, size: int, text: str) -> list[float]:
    return train(tw.shard(make_model(), parse_recipe(text)), rank, 80)


def test_it_trains() -> None:
    for losses in run_world(training_body, 2, f"{CASES[0]}:staleness=1"):
        assert sum(losses[-8:]) / 8 < losses[0] / 2


def failing_body(rank: int, size: int) -> None:
    model = tw.shard(make_model(), parse_recipe(f"{CASES[0]}:staleness=1"))

    def broken(*args: object) -> None:
        raise RuntimeError("the wire is cut")

    setattr(collectives, "exchange", broken)  # noqa: B010 - a stand-in of another type
    backward(model, rank, 0)
    with pytest.raises(RuntimeError, match="the wire is cut"):
        backward(model, rank, 1)


def test_an_error_of_the_wire_is_raised_by_the_next_step() -> None:
    run_world(failing_body, 1)


@pytest.mark.parametrize(
    "text",
    ["ddp:grads=int4/128:local_steps=2", "thin", "sdp4bit", "hsdp"],
)
def test_what_a_late_reduction_would_not_hide_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="staleness=1"):
        tw.shard(make_model(), parse_recipe(f"{text}:staleness=1"))


def test_gradients_are_handed_out_once_and_waited_for() -> None:
    closed: list[bool] = []
    late, ticket = LateGradients(), Ticket()
    first, second = torch.ones(3), torch.full((3,), 2.0)
    out = torch.full((3,), 9.0)
    late.exchange({"a": out}, {"a": first}, ticket)
    assert not out.any()
    threading.Timer(0.05, _close, (ticket, closed)).start()
    late.wait({"a", "b"})
    assert closed
    late.exchange({"a": out}, {"a": second}, None)
    assert torch.equal(out, first)
    assert set(late.state()) == {"a"}
    late.drop(frozenset({"a", "b"}))
    assert late.state() == {}
    late.load({"a": torch.ones(4)})
    with pytest.raises(StateError, match="3 elements to reduce"):
        late.exchange({"a": out}, {"a": first}, None)


def _close(ticket: Ticket, closed: list[bool]) -> None:
    closed.append(True)
    ticket.close(None)
