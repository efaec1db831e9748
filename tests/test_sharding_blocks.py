"""Small blocks that travel together: fewer launches, the same numbers, in any order of runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

import thinwire as tw
from small_models import Residual, draw_tokens, make_model, train
from thinwire.errors import ConfigError
from thinwire.recipes import parse_recipe
from thinwire.sharding.blocks import find_blocks, gather_for_every_one
from world import run_world

WIDTH, HIDDEN = 16, 21
BLOCK_NUMEL = 2 * WIDTH + (WIDTH + 1) * HIDDEN + WIDTH * HIDDEN
FP32_BYTES = 4
# two blocks of fp32 and not three
PAIRS = 2 * FP32_BYTES * BLOCK_NUMEL + 1


class Stack(nn.Module):
    """Five small blocks between an embedding and a head, recomputed in backward or not."""

    def __init__(self, *, recomputed: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(65, WIDTH)
        self.blocks = nn.ModuleList(Residual(WIDTH, HIDDEN) for _ in range(5))
        self.head = nn.Linear(WIDTH, 65)
        self._recomputed = recomputed

    def forward(self, tokens: Tensor, order: Iterable[int] = range(5)) -> Tensor:
        x = self.embed(tokens)
        for block in (self.blocks[index] for index in order):
            x = checkpoint(block, x, use_reentrant=False) if self._recomputed else block(x)
        out: Tensor = self.head(x)
        return out


def test_blocks_are_found_and_grouped_within_their_container() -> None:
    model = nn.Module()
    model.first, model.second = Stack(), Stack()
    model.empty = nn.ModuleList([nn.Identity()])
    for group_bytes, sizes in ((0, [1] * 10), (PAIRS, [2, 2, 1, 2, 2, 1]), (2**20, [5, 5])):
        blocks = find_blocks(model, group_bytes, FP32_BYTES)
        lists = [block if isinstance(block, list) else [block] for block in blocks]
        assert [len(group) for group in lists] == sizes
        found = [block for group in lists for block in group]
        assert found == [*model.first.blocks, *model.second.blocks]


def test_a_block_that_is_listed_twice_is_one() -> None:
    block = nn.Linear(2, 2)
    model = nn.Module()
    model.blocks = nn.ModuleList([block, block, nn.Linear(2, 2)])
    assert find_blocks(model, 0, FP32_BYTES) == [block, model.blocks[2]]


# what a step launches with five blocks and the root, by recipe: gathers before forward, and before
# backward of all but the root; a replica's deltas, once
UNITS = {0: 6, PAIRS: 4, None: 2}
RECIPES: dict[str, Callable[[int], dict[str, int]]] = {
    "zero3:weights=int8/128": lambda units: {"all_gather": 2 * units - 1, "reduce_scatter": units},
    "zero2:grads=int4/128+stochastic": lambda units: {"all_gather": units, "reduce_scatter": units},
    "zeropp:compute=fp32": lambda units: {"all_gather": 2 * units, "reduce_scatter": units},
    "sdp4bit:feedback=true": lambda units: {
        "all_gather": units,
        "reduce_scatter": units,
        "agreement": 1,
    },
    "thin:replica=host/bf16:grads=int2/32+shift:feedback=true": lambda units: {
        # deltas, and every read but the root's second of a replica that is split over the host
        "all_gather": units + 2 * units - 1,
        "reduce_scatter": units,
        "agreement": 1,
    },
    "hsdp:grads_within=int8/32": lambda units: {
        "all_gather": 2 * units - 1 + units,
        "reduce_scatter": 2 * units,
    },
    "qsdp:exact=*norm*|*.up.*": lambda units: {
        "all_gather": 2 * units - 1,
        "reduce_scatter": units,
    },
}
NUM_STEPS = 3


def grouped_body(rank: int, size: int) -> dict[str, dict[int | None, tuple[list[float], object]]]:
    """By recipe and size of groups: the losses, and the launches of a step."""
    answers: dict[str, dict[int | None, tuple[list[float], object]]] = {}
    for recipe in RECIPES:
        answers[recipe] = {}
        for group_bytes in UNITS:
            text = f"{recipe}:compute=fp32" if "compute" not in recipe else recipe
            text += ":min_numel=0" if "exact" in recipe else ":min_numel=0:exact=none"
            if group_bytes is not None:
                text += f":group_bytes={group_bytes}"
            model = tw.shard(Stack(), parse_recipe(text))
            losses = train(model, rank, NUM_STEPS)
            counted = {c["name"]: c["calls"] / NUM_STEPS for c in tw.ledger(model)["collectives"]}
            answers[recipe][group_bytes] = losses, counted
    return answers


def test_fewer_launches_and_the_same_numbers() -> None:
    for answers in run_world(grouped_body, 4, ranks_per_host=2):
        for recipe, by_size in answers.items():
            for group_bytes, (losses, counted) in by_size.items():
                assert losses == by_size[0][0], (recipe, group_bytes)
                assert counted == RECIPES[recipe](UNITS[group_bytes]), (recipe, group_bytes)


def stock_body(rank: int, size: int, group_bytes: int) -> tuple[list[float], list[float]]:
    """A recipe that PyTorch's own collectives carry, grouped when it is asked for."""
    model = Stack()
    groups = find_blocks(model, group_bytes, FP32_BYTES)
    for modules in (*groups, model):
        fully_shard(modules)
    stock = train(model, rank, NUM_STEPS)
    recipe = parse_recipe(f"zero3:compute=fp32:group_bytes={group_bytes}")
    return stock, train(tw.shard(Stack(), recipe), rank, NUM_STEPS)


@pytest.mark.parametrize("group_bytes", [0, PAIRS])
def test_uncompressed_it_is_fsdps_own_with_the_same_groups(group_bytes: int) -> None:
    for stock, ours in run_world(stock_body, 3, group_bytes):
        assert ours == stock


def names_body(rank: int, size: int) -> list[list[str]]:
    names = []
    for group_bytes in (0, 2**20):
        model = tw.shard(Stack(), parse_recipe(f"qsdp:group_bytes={group_bytes}"))
        names.append(list(model.state_dict()))
    return names


def test_names_in_a_checkpoint_do_not_depend_on_groups() -> None:
    for alone, grouped in run_world(names_body, 2):
        assert alone == grouped == list(Stack().state_dict())


def recomputed_body(rank: int, size: int) -> list[list[float]]:
    runs = []
    for recomputed in (False, True):
        for group_bytes in (0, PAIRS):
            text = f"zero3:weights=int8/128:compute=fp32:min_numel=0:group_bytes={group_bytes}"
            model = tw.shard(Stack(recomputed=recomputed), parse_recipe(text))
            runs.append(train(model, rank, NUM_STEPS))
    return runs


def test_recomputed_blocks_may_be_grouped() -> None:
    for runs in run_world(recomputed_body, 2):
        assert all(run == runs[0] for run in runs)


class Side(nn.Module):
    """Three heads side by side, which a loss may use in any combination."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Linear(8, 8)
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)) for _ in range(3)
        )

    def forward(self, x: Tensor, order: tuple[int, ...]) -> dict[int, Tensor]:
        stem = self.stem(x)
        return {index: self.heads[index](stem) for index in order}


# the order in which heads run, and the backward passes, each over the losses of some heads
ORDERS: list[tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]] = [
    ((0, 1, 2), ((0,),)),
    ((0, 1, 2), ((1,),)),
    ((0, 1, 2), ((0, 2),)),
    ((0, 1, 2), ((0,), (2,))),
    ((0, 1, 2), ((2,), (0,))),
    ((2, 0, 1), ((2, 1),)),
    ((2, 0), ((2,),)),
    ((1,), ((1,),)),
    ((0, 1, 0, 2), ((0, 1, 2),)),
]


def orders_body(rank: int, size: int) -> list[list[list[Tensor]]]:
    answers = []
    for order, passes in ORDERS:
        gradients = []
        for group_bytes in (0, 2**20):
            # a head that runs twice is reduced once where alone it is reduced in two parts
            grads = "fp32" if len(order) > len(set(order)) else "int4/32+stochastic"
            text = f"zero3:compute=fp32:weights=int8/64:grads={grads}:min_numel=0"
            model = tw.shard(Side(), parse_recipe(f"{text}:group_bytes={group_bytes}"))
            for _ in range(2):
                model.zero_grad()
                out = model(torch.ones(2, 8) * (rank + 1), order)
                for index, heads in enumerate(passes):
                    loss = torch.stack([out[head].square().sum() for head in heads]).sum()
                    torch.autograd.backward(loss, retain_graph=index + 1 < len(passes))
            gradients.append([whole(parameter) for parameter in model.parameters()])
        answers.append(gradients)
    return answers


def whole(parameter: Tensor) -> Tensor:
    """A gradient as all ranks have it; what no pass reached is like zero."""
    assert isinstance(parameter, DTensor)
    if parameter.grad is None:
        return torch.zeros(parameter.shape)
    assert isinstance(parameter.grad, DTensor)
    return parameter.grad.full_tensor()


def test_blocks_run_in_any_order() -> None:
    """Side by side, left out, called twice, or with a loss of each one's own."""
    for answers in run_world(orders_body, 2):
        for case, (alone, grouped) in zip(ORDERS, answers, strict=True):
            for expected, found in zip(alone, grouped, strict=True):
                # sums of a few terms, each to 2**-23; without two parts there is one way to sum
                tolerance = 1e-6 if len(case[0]) > len(set(case[0])) else 0.0
                assert (found - expected).abs().max() <= tolerance * expected.abs().max(), case


EVERY = tuple(range(5))
# by use: the blocks that run in every step
USES: dict[str, list[tuple[int, ...]]] = {
    "all": [EVERY] * 4,
    "reversed": [EVERY, EVERY[::-1], EVERY, EVERY],
    "left out": [EVERY, (0, 1, 3, 4), EVERY, EVERY],
    "not yet run": [(0, 1, 3, 4), EVERY, EVERY, EVERY],
    "run twice": [EVERY, (0, 0, 1, 2, 3, 4), EVERY, EVERY],
    "written": [EVERY] * 4,
}
TRAINED = {
    "drawn": "zero2:grads=int4/32+stochastic:weights=int8/32+shift",
    "feedback": "zero3:weights=fp32:grads=int4/32:feedback=true",
    "replica": "thin:weights=int4/32:grads=int4/32",
}
# what the page on recipes says of groups; all else is the same to the bit
OTHERWISE = {
    ("drawn", "not yet run"),
    *((name, "run twice") for name in ("drawn", "feedback")),
    *(("replica", use) for use in ("left out", "not yet run", "written")),
}


def trained(model: nn.Module, use: str, rank: int) -> Tensor:
    """The weights after some steps of a use."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step, order in enumerate(USES[use]):
        if use == "written" and step == 2:
            with torch.no_grad():
                for parameter in model.get_submodule("blocks.2").parameters():
                    parameter.mul_(1.4)
        tokens = draw_tokens(step, rank)
        logits = model(tokens[:, :-1], order).flatten(0, 1)
        torch.autograd.backward(nn.functional.cross_entropy(logits, tokens[:, 1:].flatten()))
        optimizer.step()
        optimizer.zero_grad()
    parameters = [p.detach() for p in model.parameters()]
    return torch.cat([p.full_tensor().flatten() for p in parameters if isinstance(p, DTensor)])


def uses_body(rank: int, size: int) -> set[tuple[str, str]]:
    """The recipes and uses in which groups make a difference."""
    found = set()
    for name, text in TRAINED.items():
        for use in USES:
            alone, grouped = (
                trained(
                    tw.shard(
                        Stack(), parse_recipe(f"{text}:compute=fp32:min_numel=0:group_bytes={n}")
                    ),
                    use,
                    rank,
                )
                for n in (0, 2**20)
            )
            if not torch.equal(alone, grouped):
                found.add((name, use))
    return found


def test_groups_make_a_difference_only_where_the_page_says_so() -> None:
    for found in run_world(uses_body, 2):
        assert found == OTHERWISE


def stock_failure_body(rank: int, size: int) -> None:
    """Why every one asks for the weights: PyTorch's own groups do not."""
    for guarded in (False, True):
        model = Side()
        fully_shard(list(model.heads))
        if guarded:
            gather_for_every_one(list(model.heads))
        fully_shard(model)
        loss = model(torch.ones(2, 8), (0, 1, 2))[0].sum()
        if guarded:
            torch.autograd.backward(loss)
        else:
            with pytest.raises(RuntimeError, match="storage of size 0"):
                torch.autograd.backward(loss)


def test_without_asking_backward_fails() -> None:
    run_world(stock_failure_body, 2)


def refusals_body(rank: int, size: int) -> None:
    model = Stack()
    recipe = parse_recipe("qsdp:group_bytes=4096")
    with pytest.raises(ConfigError, match="leave one of them out"):
        tw.shard(model, recipe, blocks=list(model.blocks))
    fully_shard(model)
    with pytest.raises(ConfigError, match="decides how FSDP2 wraps"):
        tw.compress(model, recipe)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chosen = make_model()
        tw.shard(chosen, parse_recipe("qsdp"), blocks=list(chosen.blocks))
    # blocks that were given are taken as they are
    assert sum(isinstance(module, FSDPModule) for module in chosen.modules()) == 3
    assert len({module._get_fsdp_state() for module in (*chosen.blocks, chosen)}) == 3


def test_groups_are_asked_for_once_and_where_they_can_be_made() -> None:
    run_world(refusals_body, 2)
