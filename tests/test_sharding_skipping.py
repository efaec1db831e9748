"""A step that all ranks skip leaves no trace: the run goes on as if its batch had never been."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw
from small_models import draw_tokens, make_model, token_loss
from thinwire.errors import StateError
from thinwire.recipes import parse_recipe
from thinwire.train.finite import FiniteCheck
from world import run_world

INT4 = "grads=int4/128+stochastic:min_numel=0:compute=fp32"
TEXTS = [
    f"ddp:{INT4}:feedback=true",
    f"zero2:{INT4}:weights=int8/32+shift:feedback=true:residual=int8/64",
    f"zero3:{INT4}:weights=fp32:feedback=true:grads_within=int8/64:residual_average=0.5",
    f"zero3:{INT4}:weights=fp32",
    "ddp:grads=lowrank=2:min_numel=0:feedback=true",
    # a skipped step's forward pass sends the deltas of the step before: these stay sent
    "thin:weights=int3/32+stochastic:grads=int4/32+stochastic:min_numel=0:compute=fp32",
    "thin:weights=int3/32+stochastic:grads=fp32:replica=host/bf16:min_numel=0:compute=fp32",
]
# where early micro-batches leave something: within the host, whole, or in what is reduced already
EARLY_TEXTS = [
    f"thin:{INT4}:accumulate=within",
    f"thin:{INT4}:accumulate=keep:stage=2",
    f"thin:{INT4}:accumulate=keep",
    f"hsdp:{INT4}:accumulate=within:feedback=true",
    "zero3:hybrid=true:accumulate=within",
    "zero2:compute=fp32:accumulate=within",
    f"zero3:{INT4}:grads_within=int8/64:accumulate=within:feedback=true",
    "zero2:compute=fp32:weights=fp32:accumulate=within:staleness=1",
    "zero1:compute=fp32",
    "zero2:compute=bf16:accumulate=keep",
    "zero3:compute=fp32:accumulate=keep",
    "zero3:compute=bf16:accumulate=keep",  # what is kept is fp32, weights are not
    f"zero3:{INT4}:feedback=true",
    f"ddp:{INT4}:accumulate=keep:feedback=true",
]
POISONED = 2  # the step whose gradient is not finite, on rank 1 only


def train(model: nn.Module, rank: int, *, poison: bool) -> Tensor:
    """The weights after some steps; in one more of them rank 1 has a NaN, so that all skip it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    finite = FiniteCheck()
    for step in range(5):
        if step == POISONED and poison:
            # what comes after the first block is finite on all ranks, and reduced before the NaN
            block = model.get_submodule(_prefix(model) + "blocks.0")
            hook = block.register_forward_hook(spoil if rank == 1 else nothing)
            reduce(model, 100, rank)
            hook.remove()
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            assert not finite.agree(torch.zeros(()), gradients).take_step
            tw.skip_step(model)
            optimizer.zero_grad()
        reduce(model, step, rank)
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([whole(parameter).flatten() for parameter in model.parameters()])


def _prefix(model: nn.Module) -> str:
    return "module." if isinstance(model, DistributedDataParallel) else ""


def spoil(_module: nn.Module, _args: object, output: Tensor) -> None:
    output.register_hook(lambda gradient: gradient * torch.nan)  # type: ignore[no-untyped-call]


def nothing(_module: nn.Module, _args: object, output: Tensor) -> None:
    """The same hook without the NaN."""


def reduce(model: nn.Module, step: int, rank: int) -> None:
    token_loss(model, draw_tokens(step, rank)).backward()  # type: ignore[no-untyped-call]


def whole(parameter: Tensor) -> Tensor:
    detached = parameter.detach()
    return detached.full_tensor() if isinstance(detached, DTensor) else detached


def skip_body(rank: int, size: int, text: str) -> tuple[Tensor, Tensor]:
    skipped = train(tw.shard(make_model(), parse_recipe(text)), rank, poison=True)
    steady = train(tw.shard(make_model(), parse_recipe(text)), rank, poison=False)
    return skipped, steady


@pytest.mark.parametrize("text", TEXTS)
def test_a_skipped_step_leaves_no_trace(text: str) -> None:
    per_host = 2 if "grads_within" in text or "replica=host" in text else 1
    for skipped, steady in run_world(skip_body, 2 * per_host, text, ranks_per_host=per_host):
        assert torch.equal(skipped, steady)


class _GivenUpError(Exception):
    """What a user's own hook raises."""


def give_up_in_forward(_module: nn.Module, _args: object, _output: Tensor) -> None:
    raise _GivenUpError


def give_up_in_backward(_module: nn.Module, _args: object, output: Tensor) -> None:
    def refuse(_gradient: Tensor) -> None:
        raise _GivenUpError

    output.register_hook(refuse)  # type: ignore[no-untyped-call]


# DDP itself does not go on after a pass that it has not finished; late gradients are used and stay
RAISING_TEXTS = [
    text
    for text in (*TEXTS, *EARLY_TEXTS)
    if not text.startswith("ddp") and "staleness" not in text
]
# of the micro-batches of a step that is given up
Attempt = Callable[[nn.Module, int], None]


def train_in_two(model: nn.Module, rank: int, attempts: Sequence[Attempt]) -> Tensor:
    """Steps of two micro-batches, and before one of them others that are given up."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for step in range(4):
        for attempt in attempts if step == POISONED else ():
            attempt(model, rank)
            tw.skip_step(model)
            optimizer.zero_grad()
        for micro in range(2):
            with tw.accumulate(model, is_last=micro == 1):
                reduce(model, 2 * step + micro, rank)
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([whole(parameter).flatten() for parameter in model.parameters()])


def traces(texts: Sequence[str], rank: int, attempts: Sequence[Attempt]) -> list[str]:
    """The recipes under which steps that were given up leave a trace."""
    return [
        text
        for text in texts
        if not torch.equal(
            train_in_two(tw.shard(make_model(), parse_recipe(text)), rank, attempts),
            train_in_two(tw.shard(make_model(), parse_recipe(text)), rank, ()),
        )
    ]


def raising(give_up: Callable[..., None]) -> Attempt:
    """The last of two micro-batches raises, while what comes after the first block is under way."""

    def attempt(model: nn.Module, rank: int) -> None:
        with tw.accumulate(model, is_last=False):
            reduce(model, 100, rank)
        hook = model.get_submodule("blocks.0").register_forward_hook(give_up)
        with pytest.raises(_GivenUpError), tw.accumulate(model, is_last=True):
            reduce(model, 101, rank)
        hook.remove()

    return attempt


def raised_body(rank: int, size: int) -> list[str]:
    return traces(RAISING_TEXTS, rank, [raising(give_up_in_forward), raising(give_up_in_backward)])


def test_a_pass_that_raised_leaves_no_trace() -> None:
    assert run_world(raised_body, 4, ranks_per_host=2) == [[]] * 4


def forgetful_body(rank: int, size: int) -> bool:
    skipped, steady = skip_body(rank, size, TEXTS[0] + ":residual_undo=false")
    return torch.equal(skipped, steady)


def test_what_is_not_kept_cannot_be_taken_back() -> None:
    """The test above can fail."""
    assert run_world(forgetful_body, 2) == [False, False]


def only_the_first(model: nn.Module, rank: int) -> None:
    """One micro-batch of two, which is far too large."""
    with tw.accumulate(model, is_last=False):
        (1000 * token_loss(model, draw_tokens(100, rank))).backward()  # type: ignore[no-untyped-call]


def early_body(rank: int, size: int) -> list[str]:
    return traces(EARLY_TEXTS, rank, [only_the_first])


def test_a_step_given_up_between_micro_batches_leaves_no_trace() -> None:
    assert run_world(early_body, 4, ranks_per_host=2) == [[]] * 4


def hidden_body(rank: int, size: int) -> None:
    for name in ("_fsdp_param_groups", "unsharded_accumulated_grad"):
        model = tw.shard(make_model(), parse_recipe("zero3:compute=fp32:accumulate=keep"))
        assert isinstance(model, FSDPModule)
        state = model._get_fsdp_state()
        parameter = state._fsdp_param_groups[0].fsdp_params[0]
        (state if hasattr(state, name) else parameter).__delattr__(name)
        told = pytest.raises(StateError, match=r"install torch 2\.13")
        with mock.patch.object(FSDPModule, "reshard"), told:
            tw.skip_step(model)


def test_gradients_that_cannot_be_found_are_not_passed_over() -> None:
    run_world(hidden_body, 2)


def frozen_body(rank: int, size: int) -> tuple[Tensor, Tensor]:
    """The parameter that comes first is frozen after sharding, and no optimizer holds it."""
    answers = []
    for poison in (True, False):
        model = tw.shard(make_model(), parse_recipe(TEXTS[1]))
        next(iter(model.parameters())).requires_grad_(False)
        answers.append(train(model, rank, poison=poison))
    return answers[0], answers[1]


def test_steps_are_told_apart_whatever_is_frozen() -> None:
    for skipped, steady in run_world(frozen_body, 2):
        assert torch.equal(skipped, steady)
