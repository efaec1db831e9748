"""Local steps: ranks train on their own and meet with equal bits, as often as the recipe says."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from small_models import SmallModel, draw_tokens, make_model, token_loss, train
from thinwire.comm.ledger import Ledger
from thinwire.comm.sender import Sender
from thinwire.comm.topology import discover_topology
from thinwire.errors import ConfigError, StateError
from thinwire.recipes import parse_recipe
from thinwire.sharding.compression import Compression
from thinwire.sharding.local_sgd import OUTER_LR, OUTER_MOMENTUM, LocalSteps
from world import run_world

INT4 = "ddp:grads=int4/128:feedback=true:min_numel=0"


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def plain_steps(rank: int, steps: int, start: int = 0, model: SmallModel | None = None) -> Tensor:
    """Weights after SGD steps without any communication."""
    model = make_model() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(start, start + steps):
        optimizer.zero_grad()
        token_loss(model, draw_tokens(step, rank)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return weights(model)


def plain_average_body(rank: int, size: int) -> Tensor:
    model = make_model()
    compression = Compression(parse_recipe("ddp"), discover_topology(), Ledger(), Sender())
    meetings = LocalSteps(model, compression, outer_lr=1.0, outer_momentum=0.0)
    plain_steps(rank, 1, model=model)
    meetings.meet()
    return weights(model)


@pytest.mark.parametrize("size", [1, 3])
def test_with_a_plain_outer_step_a_meeting_averages_the_parameters(size: int) -> None:
    expected = torch.stack([plain_steps(rank, 1) for rank in range(size)]).mean(0)
    for answer in run_world(plain_average_body, size):
        # anchor - (anchor - parameter) and a sum of three: a few roundings of fp32
        torch.testing.assert_close(answer, expected, rtol=0, atol=8 * 2.0**-24)


def meeting_body(rank: int, size: int) -> list[Tensor]:
    model = make_model()
    assert tw.shard(model, parse_recipe("ddp:local_steps=2")) is model
    return [plain_steps(rank, 2, start, model) for start in (0, 2)]


def test_the_outer_step_is_nesterovs() -> None:
    """Against the update written out by hand (the paper's algorithm 1)."""
    anchor, momentum = weights(make_model()), torch.zeros(0)
    answers = run_world(meeting_body, 2)
    for meeting, start in enumerate((0, 2)):
        ends = []
        for rank in range(2):
            model = make_model()
            nn.utils.vector_to_parameters(anchor.clone(), model.parameters())
            ends.append(plain_steps(rank, 2, start, model))
        gradient = anchor - torch.stack(ends).mean(0)
        momentum = gradient if meeting == 0 else OUTER_MOMENTUM * momentum + gradient
        anchor = anchor - OUTER_LR * (gradient + OUTER_MOMENTUM * momentum)
        for answer in answers:
            torch.testing.assert_close(answer[meeting], anchor, rtol=0, atol=1e-6)


def equal_bits_body(rank: int, size: int, overlap: bool) -> tuple[list[Tensor], list[int]]:
    recipe = parse_recipe(f"{INT4}:local_steps=3")
    model = tw.shard(make_model(seed=rank), recipe, overlap=overlap)  # rank 0's weights win
    snapshots, sent = [], []
    for step in range(7):
        plain_steps(rank, 1, step, model)  # type: ignore[arg-type]  # the same object
        snapshots.append(weights(model))
        sent.append(tw.ledger(model)["sent_bytes"])
    return snapshots, sent


def test_ranks_hold_the_same_bits_after_a_meeting_and_send_only_then() -> None:
    answers = run_world(equal_bits_body, 3, True)
    first, sent = answers[0]
    for snapshots, _ in answers[1:]:
        for step in range(7):
            assert torch.equal(snapshots[step], first[step]) == (step in (2, 5))
    assert sent[0] == sent[1] == 0
    assert 0 < sent[2] == sent[3] == sent[4]
    assert sent[5] == sent[6] == 2 * sent[2]
    # Two of three slots go out and the own one goes to two ranks. 4.25 bits an element when blocks
    # are full; this model's small parameters double it.
    full_bytes = 4 / 3 * first[0].numel() * 4.25 / 8
    assert full_bytes < sent[2] < 2 * full_bytes
    on_the_spot, _ = run_world(equal_bits_body, 3, False)[0]
    for one, other in zip(first, on_the_spot, strict=True):
        assert torch.equal(one, other)


def training_body(rank: int, size: int) -> list[float]:
    return train(tw.shard(make_model(), parse_recipe(f"{INT4}:local_steps=4")), rank, 60)


def test_it_trains() -> None:
    for losses in run_world(training_body, 2):
        # the next token follows from the one before: every exchange-free rank could learn it too,
        # but an outer step in the wrong direction would undo it
        assert sum(losses[-8:]) / 8 < losses[0] / 2


def lifetime_body(rank: int, size: int) -> None:
    model: nn.Module | None = tw.shard(make_model(), parse_recipe("ddp:local_steps=2"))
    assert model is not None
    trained = weakref.ref(next(model.parameters()))
    other = make_model()
    plain_steps(rank, 4, model=other)  # another model's optimizer does not count
    assert tw.ledger(model)["sent_bytes"] == 0
    model = None
    gc.collect()
    assert trained() is None


def test_only_the_models_own_optimizer_counts_and_nothing_outlives_the_model() -> None:
    run_world(lifetime_body, 1)


def layouts_body(rank: int, size: int) -> Tensor:
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).to(
        memory_format=torch.channels_last  # type: ignore[call-overload]
    )
    model[0].bias.requires_grad_(False)
    tw.shard(model, parse_recipe("ddp:local_steps=2:grads=int8/32:min_numel=0"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(2, 3, 8, 8)).square().mean().backward()
        optimizer.step()
    return weights(model)


def test_channels_last_and_frozen_parameters() -> None:
    one, other = run_world(layouts_body, 2)
    assert torch.equal(one, other)


def refusals_body(rank: int, size: int) -> None:
    recipe = parse_recipe("ddp:local_steps=2")
    wrapped = nn.parallel.DistributedDataParallel(make_model())
    with pytest.raises(ConfigError, match="on the plain model"):
        tw.compress(wrapped, recipe)
    with pytest.raises(ConfigError, match="the plain model"):
        tw.shard(wrapped, recipe)
    with pytest.raises(ConfigError, match="use stage=0"):
        tw.shard(make_model(), parse_recipe("zero2:local_steps=2"))
    with pytest.raises(ConfigError, match="no parameter of the model is trained"):
        tw.shard(make_model().requires_grad_(False), recipe)
    model = make_model()
    tw.shard(model, recipe)
    plain_steps(rank, 1, model=model)
    model.norm.weight.requires_grad_(False)
    with pytest.raises(StateError, match=r"norm\.weight was frozen"):
        plain_steps(rank, 1, model=model)


def test_wrong_use_is_refused() -> None:
    run_world(refusals_body, 2)
