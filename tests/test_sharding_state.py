"""Checkpoints of what compression remembers: a resumed run goes on bit for bit."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

import thinwire as tw
from small_models import draw_tokens, make_model, token_loss
from thinwire.comm import collectives, exchange
from thinwire.errors import StateError
from thinwire.recipes import parse_recipe
from world import run_world

CODED = "grads=int4/128+stochastic:feedback=true:min_numel=0:compute=fp32"
CASES = [
    f"ddp:{CODED}",
    "ddp:grads=lowrank=2:feedback=true:min_numel=0",
    "ddp_sign:min_numel=0:warmup_steps=6",
    "ddp_topk:min_numel=0:staleness=1",
    f"ddp:{CODED}:local_steps=3",
    f"zero2:{CODED}:weights=fp32:staleness=1",
    f"zero3:{CODED}:weights=int8/128+stochastic",
]
# with hosts of two ranks
ON_HOSTS = [
    f"thin:{CODED}:weights=int4/128+stochastic",
    f"thin:{CODED}:replica=host/bf16",
    f"hsdp:{CODED}:grads_within=int8/64+stochastic",
]
SAVED_AFTER, NUM_STEPS = 4, 9


def steps(
    model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, first: int, last: int
) -> None:
    for step in range(first, last):
        optimizer.zero_grad()
        token_loss(model, draw_tokens(step, rank)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def weights(model: nn.Module) -> Tensor:
    """This rank's weights, or its shards of them."""
    detached = (p.detach() for p in model.parameters())
    locals_ = (p.to_local() if isinstance(p, DTensor) else p for p in detached)
    return torch.cat([tensor.flatten().clone() for tensor in locals_])


def make(text: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = tw.shard(make_model(), parse_recipe(text))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def through_a_file(state: dict[str, Tensor]) -> dict[str, Tensor]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Tensor] = torch.load(file, weights_only=True)
    return loaded


def copied(values: Any) -> Any:
    """A state dict whose tensors further steps leave alone."""
    if isinstance(values, Tensor):
        return values.detach().clone()
    if isinstance(values, dict):
        return {key: copied(value) for key, value in values.items()}
    return [copied(value) for value in values] if isinstance(values, list) else values


def resumed_body(
    rank: int, size: int, texts: list[str]
) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """For every recipe the weights of a run, of its resumption, and of one that forgot."""
    answers = {}
    for text in texts:
        model, optimizer = make(text)
        steps(model, optimizer, rank, 0, SAVED_AFTER)
        saved = copied(model.state_dict()), copied(optimizer.state_dict())
        remembered = through_a_file(tw.compression_state(model))
        steps(model, optimizer, rank, SAVED_AFTER, NUM_STEPS)
        ends = [weights(model)]
        for state in (remembered, None):
            model, optimizer = make(text)
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
            if state is not None:
                tw.load_compression_state(model, state)
            steps(model, optimizer, rank, SAVED_AFTER, NUM_STEPS)
            ends.append(weights(model))
        answers[text] = (ends[0], ends[1], ends[2])
    return answers


@pytest.mark.parametrize(("texts", "size", "per_host"), [(CASES, 3, 1), (ON_HOSTS, 4, 2)])
def test_a_resumed_run_goes_on_bit_for_bit(texts: list[str], size: int, per_host: int) -> None:
    for answers in run_world(resumed_body, size, texts, ranks_per_host=per_host):
        for text, (through, resumed, forgetful) in answers.items():
            assert torch.equal(through, resumed), text
            assert not torch.equal(through, forgetful), text


def rewound_body(rank: int, size: int, texts: list[str]) -> list[tuple[str, Tensor, Tensor]]:
    """Weights of a run, and of the same model once more after it was taken back."""
    free, answers = exchange.exchange, []

    def slow(*args: Any) -> None:
        time.sleep(0.03)  # the last reductions are under way when the state is loaded
        free(*args)

    setattr(collectives, "exchange", slow)  # noqa: B010 - a stand-in of another type
    for text in texts:
        model, optimizer = make(text)
        steps(model, optimizer, rank, 0, 2)
        saved = copied([model.state_dict(), optimizer.state_dict(), tw.compression_state(model)])
        steps(model, optimizer, rank, 2, 4)
        through = weights(model)
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
        tw.load_compression_state(model, saved[2])
        steps(model, optimizer, rank, 2, 4)
        answers.append((text, through, weights(model)))
    return answers


def test_what_is_under_way_does_not_change_what_is_loaded() -> None:
    texts = [
        f"ddp:{CODED}:staleness=1",
        "ddp:grads=lowrank=2:feedback=true:min_numel=0:staleness=1",
        f"zero2:{CODED}:weights=fp32:staleness=1",
    ]
    for answers in run_world(rewound_body, 2, texts):
        for text, through, again in answers:
            assert torch.equal(through, again), text


def distributed_body(rank: int, size: int, folder: str) -> tuple[Tensor, Tensor, int]:
    text = CASES[5]
    model, optimizer = make(text)
    steps(model, optimizer, rank, 0, SAVED_AFTER)
    weights_then = copied(model.state_dict())
    optimizer_then = copied(optimizer.state_dict())
    state = tw.compression_state(model)
    save({"compression": state}, checkpoint_id=folder)
    steps(model, optimizer, rank, SAVED_AFTER, NUM_STEPS)
    through = weights(model)

    model, optimizer = make(text)
    model.load_state_dict(weights_then)
    optimizer.load_state_dict(optimizer_then)
    blank = tw.blank_compression_state(FileSystemReader(folder).read_metadata())
    assert blank.keys() == state.keys()
    load({"compression": blank}, checkpoint_id=folder)
    tw.load_compression_state(model, blank)
    steps(model, optimizer, rank, SAVED_AFTER, NUM_STEPS)
    return through, weights(model), len(state)


def test_a_checkpoint_that_all_ranks_write_together(tmp_path: Path) -> None:
    for through, resumed, num_tensors in run_world(distributed_body, 3, str(tmp_path)):
        assert torch.equal(through, resumed)
        assert num_tensors > 10


INCOMPLETE = (
    f"ddp:{CODED}",
    "ddp:grads=lowrank=2:feedback=true:min_numel=0",
    "ddp_topk:min_numel=0:staleness=1",
    f"thin:{CODED}",
)


def incomplete_body(rank: int, size: int) -> None:
    for text in INCOMPLETE:
        model, optimizer = make(text)
        steps(model, optimizer, rank, 0, 2)
        state = dict(tw.compression_state(model))
        fresh, _ = make(text)
        for entry in state:
            if not entry.startswith(("shared/", f"rank{rank}/")):
                continue
            left = {name: tensor for name, tensor in state.items() if name != entry}
            with pytest.raises(StateError):  # on one rank only: the others refuse with it
                tw.load_compression_state(fresh, left if rank == 0 else state)
        with pytest.raises(StateError, match=r"no use for|entries are not those"):
            tw.load_compression_state(fresh, state | {f"rank{rank}/bogus": torch.zeros(1)})
        nothing: Any
        for nothing in (None, [], "state"):
            with pytest.raises(StateError, match="a state is a dict of tensors"):
                tw.load_compression_state(fresh, nothing)
        tw.load_compression_state(fresh, state)


def test_a_state_that_lacks_any_of_its_entries_is_refused() -> None:
    run_world(incomplete_body, 2)


def refusals_body(rank: int, size: int) -> None:
    model, optimizer = make(CASES[0])
    steps(model, optimizer, rank, 0, 2)
    state = tw.compression_state(model)
    fresh, _ = make(CASES[0])
    with pytest.raises(StateError, match="no compression state"):
        tw.load_compression_state(fresh, {})
    more = state | {"shared/arrangement/hosts": torch.arange(4)}
    with pytest.raises(StateError, match="4 ranks on 4 hosts, and dealing it out to 2 ranks on 2"):
        tw.load_compression_state(fresh, more)
    own = f"rank{rank}/residuals"
    with pytest.raises(StateError, match=r"no parameter nowhere\.weight"):
        tw.load_compression_state(fresh, state | {f"{own}/nowhere.weight/to 0": torch.zeros(3)})
    with pytest.raises(StateError, match="is no residual"):
        tw.load_compression_state(fresh, state | {f"{own}/norm.weight/to 0": torch.zeros(3, 3)})
    exact, _ = make(CASES[0].replace("feedback=true", "feedback=false"))
    with pytest.raises(StateError, match="has no use for"):
        tw.load_compression_state(exact, state)
    with pytest.raises(StateError, match="call thinwire"):
        tw.compression_state(make_model())
    short = state | {f"{own}/embed.weight/to 0": torch.zeros(3)}
    with pytest.raises(StateError, match="is no residual of"):
        tw.load_compression_state(fresh, short)
    with pytest.raises(StateError, match=r"read_metadata\(\)"):
        tw.blank_compression_state({})  # type: ignore[arg-type]


def test_a_state_that_does_not_fit_is_refused() -> None:
    run_world(refusals_body, 2)


def anchors_body(rank: int, size: int) -> None:
    model, optimizer = make(CASES[4])
    steps(model, optimizer, rank, 0, 3)
    state = tw.compression_state(model)
    assert "shared/outer/momentum/embed.weight" in state
    fresh, _ = make(CASES[4])
    missing = {k: v for k, v in state.items() if k != "shared/outer/anchor/embed.weight"}
    with pytest.raises(StateError, match=r"no anchor of parameter embed\.weight"):
        tw.load_compression_state(fresh, missing)
    odd = state | {"shared/outer/anchor/embed.weight": torch.zeros(2)}
    with pytest.raises(StateError, match="is not the anchor"):
        tw.load_compression_state(fresh, odd)


def test_anchors_must_be_those_of_the_model() -> None:
    run_world(anchors_body, 1)
