"""Resident replicas: never stale, equal on all ranks, one delta a step, the same with overlap."""

from __future__ import annotations

import copy
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

import thinwire as tw
from small_models import draw_tokens, make_model, token_loss, train
from test_sharding_fsdp import wrap
from thinwire.errors import ConfigError
from thinwire.recipes import parse_recipe
from thinwire.sharding.attach import ledger_of
from world import run_world

THIN = "thin:compute=fp32:min_numel=0:replica=rank/fp32"
SPLIT = "thin:compute=fp32:min_numel=0:replica=host/fp32"


def weights_on(model: nn.Module) -> Tensor:
    """The weights that the next forward computes with."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.unshard()
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])


def runs_body(rank: int, size: int, texts: list[str]) -> list[Any]:
    return [
        train(tw.shard(make_model(), parse_recipe(text), overlap=overlap), rank, 8)
        for text in texts
        for overlap in (True, False)
    ]


@pytest.mark.parametrize(("size", "per_host"), [(2, 1), (4, 2), (6, 3)])
def test_overlap_and_the_replicas_place_change_no_number(size: int, per_host: int) -> None:
    late = [f"{text}:staleness=1" for text in (THIN, SPLIT)]
    for runs in run_world(runs_body, size, [THIN, SPLIT, *late], ranks_per_host=per_host):
        in_time, one_late = runs[:4], runs[4:]
        assert all(run == in_time[0] for run in in_time)
        assert all(run == one_late[0] for run in one_late)
        assert in_time[0] != one_late[0]


def overlap_body(rank: int, size: int) -> list[Any]:
    return runs_body(rank, size, ["zeropp:min_numel=0", "qsdp:compute=fp32:min_numel=0"])


def test_overlap_changes_no_number_without_a_replica() -> None:
    for zeropp, zeropp_plain, qsdp, qsdp_plain in run_world(overlap_body, 3):
        assert zeropp == zeropp_plain
        assert qsdp == qsdp_plain


def equal_body(rank: int, size: int, text: str) -> int:
    model = tw.shard(make_model(), parse_recipe(text))
    train(model, rank, 3)
    return hash(weights_on(model).numpy().tobytes())


@pytest.mark.parametrize("text", [THIN, SPLIT])
def test_every_rank_holds_the_same_replica(text: str) -> None:
    assert len(set(run_world(equal_body, 4, text, ranks_per_host=2))) == 1


def drift_body(rank: int, size: int) -> list[float]:
    """What the deltas' codec loses is in the next delta: the replica stays near the shards."""
    model = tw.shard(make_model(), parse_recipe(THIN))
    distances = []
    for _ in range(4):
        train(model, rank, 5)
        # outside a forward pass a gather brings the replica up to date by itself
        shards = [p.full_tensor().flatten() for p in model.parameters()]  # type: ignore[attr-defined]
        replica = weights_on(model)
        distances.append(float((replica - torch.cat(shards)).norm() / replica.norm()))
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
    return distances


def test_what_a_delta_loses_does_not_build_up() -> None:
    for distances in run_world(drift_body, 2):
        # int4 loses at most 1/14 of a block's largest step; steps are under 10 % of the weights
        assert all(0 < distance < 0.01 for distance in distances)


def writes_body(rank: int, size: int, text: str) -> None:
    """CASES: a replica is never read after the weights changed, whoever wrote them."""
    model = tw.shard(make_model(0), parse_recipe(text))
    tokens = draw_tokens(0, 0)[:, :-1]
    train(model, rank, 2)

    def expect(other: nn.Module) -> None:
        with torch.no_grad():
            expected = other(tokens)
            assert torch.allclose(model(tokens), expected, rtol=1e-5, atol=1e-6)

    options = StateDictOptions(full_state_dict=True)
    fresh = make_model(1)
    set_model_state_dict(model, copy.deepcopy(fresh.state_dict()), options=options)
    expect(fresh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    another = make_model(2)
    for mine, theirs in zip(model.parameters(), another.parameters(), strict=True):
        rows = theirs.detach().chunk(size) if len(theirs) else ()
        local = mine.to_local()  # type: ignore[attr-defined]
        if rank < len(rows):
            local.data.copy_(rows[rank])  # behind autograd's back
    expect(another)


@pytest.mark.parametrize("text", [THIN, f"{THIN}:staleness=1"])
def test_no_write_to_the_weights_goes_unseen(text: str) -> None:
    run_world(writes_body, 2, text)


def permuted_body(rank: int, size: int) -> None:
    """Rows that change places leave every sum over the weights as it was."""
    model = tw.shard(make_model(0), parse_recipe(THIN))
    tokens = draw_tokens(0, 0)[:, :-1]
    with torch.no_grad():
        before = model(tokens).clone()
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        for parameter in model.parameters():
            local = cast(DTensor, parameter).to_local()
            local.copy_(local.flip(0))
        assert not torch.allclose(model(tokens), before)


def test_a_permutation_of_rows_is_seen() -> None:
    run_world(permuted_body, 2)


def one_rank_writes_body(rank: int, size: int) -> int:
    model = tw.shard(make_model(0), parse_recipe(THIN))
    tokens = draw_tokens(0, 0)[:, :-1]
    with torch.no_grad():
        model(tokens)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        if rank == 1:
            local = cast(DTensor, model.get_parameter("blocks.0.up.weight")).to_local()
            local.zero_()
        out = model(tokens)
    return hash(out.numpy().tobytes())


def test_a_write_on_one_rank_is_seen_on_all() -> None:
    assert len(set(run_world(one_rank_writes_body, 2))) == 1


def recovery_body(rank: int, size: int) -> None:
    """A replica that was filled with NaN is made anew once the weights are finite again."""
    model = tw.shard(make_model(0), parse_recipe(THIN))
    tokens = draw_tokens(0, 0)[:, :-1]
    plain = make_model(0)
    with torch.no_grad():
        first = model(tokens)
        for value in (torch.nan, None):
            for module in model.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()
            for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
                rows = theirs.detach().chunk(size)
                local = mine.to_local()  # type: ignore[attr-defined]
                if rank < len(rows):
                    local.copy_(torch.full_like(local, value) if value else rows[rank])
            out = model(tokens)
        assert torch.equal(out, first)


def test_a_replica_recovers_from_nan() -> None:
    run_world(recovery_body, 2)


def traffic_body(rank: int, size: int) -> None:
    """One delta a step: gathers in backward and of unchanged weights send nothing."""
    model = tw.shard(make_model(), parse_recipe(f"{THIN}:group_bytes=0"))
    books = ledger_of(model)

    def gathered() -> tuple[int, int]:
        entries = {e["name"]: e for e in books.report()["collectives"]}
        entry = entries["all_gather"]
        return entry["calls"], entry["across_bytes"] + entry["within_bytes"]

    train(model, rank, 2)
    books.reset()
    train(model, rank, 1)
    calls, first = gathered()
    assert calls == 3  # two blocks and the root
    train(model, rank, 1)
    assert gathered() == (6, 2 * first)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for micro in range(3):  # accumulation: weights change once
        token_loss(model, draw_tokens(micro, rank)).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    assert gathered()[0] == 9


def test_one_delta_a_step() -> None:
    run_world(traffic_body, 2)


class Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = make_model()
        for block in self.inner.blocks:
            forward = block.forward
            block.forward = lambda x, f=forward: checkpoint(f, x, use_reentrant=False)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.inner(tokens)
        return out


def recompute_body(rank: int, size: int) -> tuple[list[float], list[float]]:
    plain = train(tw.shard(make_model(), parse_recipe(THIN)), rank, 4)
    again = train(tw.shard(Recomputed(), parse_recipe(THIN)), rank, 4)
    return plain, again


def test_recomputed_activations_see_the_same_weights() -> None:
    for plain, again in run_world(recompute_body, 2):
        # names differ by a prefix, but nothing here draws random numbers
        assert plain == again


def accumulation_body(rank: int, size: int) -> None:
    """Gradients reduced beside backward, onto gradients that are there already."""
    grads = []
    for overlap in (True, False):
        model = tw.shard(make_model(), parse_recipe(THIN), overlap=overlap)
        for micro in range(3):
            token_loss(model, draw_tokens(micro, rank)).backward()  # type: ignore[no-untyped-call]
        parts = [p.grad.to_local().flatten() for p in model.parameters() if p.grad is not None]  # type: ignore[attr-defined]
        grads.append(torch.cat(parts))
    assert torch.equal(grads[0], grads[1])


def test_accumulation_beside_backward_loses_nothing() -> None:
    run_world(accumulation_body, 2)


def hooks_body(rank: int, size: int) -> None:
    """Whoever reads a gradient during backward finds it complete."""
    model = tw.shard(make_model(), parse_recipe(THIN))
    assert isinstance(model, FSDPModule)
    seen: list[bool] = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            lambda p: seen.append(bool(p.grad.to_local().isfinite().all()))
        )
    reduced: list[Tensor] = []
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_all_reduce_hook(lambda grad: reduced.append(grad.clone()))
    token_loss(model, draw_tokens(0, rank)).backward()  # type: ignore[no-untyped-call]
    assert seen
    assert all(seen)
    assert sum(float(grad.abs().sum()) for grad in reduced) > 0


def test_readers_during_backward_find_complete_gradients() -> None:
    run_world(hooks_body, 2)


def compress_body(rank: int, size: int) -> tuple[list[float], list[float]]:
    model = wrap(make_model())
    tw.compress(model, parse_recipe(THIN))
    return train(model, rank, 4), train(tw.shard(make_model(), parse_recipe(THIN)), rank, 4)


def test_a_wrapped_model_takes_a_resident_replica_too() -> None:
    for compressed, sharded in run_world(compress_body, 2):
        assert compressed == sharded


def uneven_body(rank: int, size: int) -> None:
    with pytest.raises(ConfigError, match="same number of consecutive ranks"):
        tw.shard(make_model(), parse_recipe(THIN))


def test_uneven_hosts_are_refused_at_wrap_time() -> None:
    run_world(uneven_body, 3, ranks_per_host=2)


@pytest.mark.parametrize("text", ["thin:replica=rank/int8", "thin:replica=host/e4m3"])
def test_a_replica_format_that_is_not_kept_yet_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="bf16 or fp32"):
        tw.shard(make_model(), parse_recipe(text))
