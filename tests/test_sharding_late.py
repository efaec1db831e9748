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
from thinwire.wire.key import Key
from thinwire.wire.registry import codec_for
from world import run_world

INT4 = "grads=int4/128+stochastic:min_numel=0:compute=fp32:feedback=true"
CASES = [
    f"ddp:{INT4}",
    "ddp:grads=lowrank=2:min_numel=0:feedback=true",
    f"zero2:{INT4}:weights=fp32",
    f"zero3:{INT4}:weights=fp32",
    f"zero3:{INT4}:weights=fp32:grads_within=int8/64",
    f"hsdp:{INT4}:weights=fp32:grads_within=int8/64",
    f"hsdp:{INT4}:weights=fp32",
    f"thin:{INT4}:stage=2:replica=host/fp32:grads_within=int8/64",
    f"sdp4bit:{INT4}:replica=rank/fp32",
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
    # hsdp by itself: one rank per host, where FSDP2 reduces nothing
    on_hosts = "within" in text or "sdp4bit" in text
    size, per_host = (4, 2) if on_hosts else (3, 1)
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
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.99)  # so that a replica needs a delta
    loss = token_loss(model, draw_tokens(1, rank))
    events.append("forward 2")
    gate.set()
    loss.backward()  # type: ignore[no-untyped-call]
    events.append("backward 2")
    return events


@pytest.mark.parametrize("text", [CASES[0], CASES[2], CASES[-1], CASES[-3]])
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


FORMATS = "weights=int4/32:grads=int4/64:replica=rank/fp32:min_numel=0:exact=none:compute=fp32"
LR = 0.05


def through(values: Tensor, fmt: str) -> Tensor:
    """What arrives of a tensor that is sent in a format."""
    parsed = tw.parse_format(fmt)
    codec = codec_for(parsed, values.device)
    payload = torch.empty(parsed.wire_bytes(values.numel()), dtype=torch.uint8)
    codec.encode_into(values.flatten(), payload, Key())
    decoded = torch.empty(values.numel())
    codec.decode_into(payload, decoded)
    return decoded.view(values.shape)


def late_reference(size: int, rank: int, steps: int) -> list[float]:
    """Shards, replica and late gradients of all ranks in plain torch; the losses of one of them."""
    model, losses = make_model(), []  # holds the replica, with which all ranks compute
    replica = list(model.parameters())
    shards = [p.detach().clone() for p in replica]  # of all ranks, one after another
    late = [torch.zeros_like(shard) for shard in shards]
    for step in range(steps):
        with torch.no_grad():
            for copy, shard in zip(replica, shards, strict=True):
                delta = (shard - copy).chunk(size)
                copy.add_(torch.cat([through(piece, "int4/32") for piece in delta]))
        of_ranks = []
        for other in range(size):
            model.zero_grad()
            loss = token_loss(model, draw_tokens(step, other))
            torch.autograd.backward(loss)
            of_ranks.append([p.grad.clone() for p in replica if p.grad is not None])
            losses += [loss.item()] if other == rank else []
        for index, shard in enumerate(shards):
            shard.add_(late[index], alpha=-LR)
            pieces = [gradients[index].chunk(size) for gradients in of_ranks]
            sent = [torch.cat([through(piece, "int4/64") for piece in row]) for row in pieces]
            late[index] = torch.stack(sent).sum(0) / size
    return losses


def replica_body(rank: int, size: int) -> None:
    model = tw.shard(make_model(), parse_recipe(f"sdp4bit:{FORMATS}:grads_within=none:staleness=1"))
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    losses = []
    for step in range(8):
        loss = token_loss(model, draw_tokens(step, rank))
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    # two ranks: a sum of two terms and half of it are the same in any order
    assert losses == late_reference(size, rank, 8)
    assert len(set(losses)) == 8


def test_a_replica_and_late_gradients_are_the_reference_to_the_bit() -> None:
    run_world(replica_body, 2)


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


def test_what_a_late_reduction_would_not_hide_is_refused() -> None:
    with pytest.raises(ConfigError, match="staleness=1"):
        tw.shard(make_model(), parse_recipe("ddp:grads=int4/128:local_steps=2:staleness=1"))


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
