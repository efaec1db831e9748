"""States dealt out to other ranks, made by hand: sums are kept, and what does not fit is refused.

What real runs save and go on from is in test_sharding_restart.py.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from thinwire.comm.ledger import Ledger
from thinwire.comm.topology import Topology
from thinwire.errors import StateError
from thinwire.formats import parse_format
from thinwire.recipes import parse_recipe
from thinwire.sharding.arrangement import Arrangement
from thinwire.sharding.compression import Compression
from thinwire.sharding.portions import Gradient, portions_of
from thinwire.sharding.redistribution import Redistribution, is_dealt_out
from thinwire.wire.residual import Residual

ANY = "feedback=true:compute=fp32:weights=fp32:exact=:min_numel=0"
WHOLE, SHARDED = f"ddp:grads=int4/32:{ANY}", f"zero3:grads=int4/32:{ANY}"
HYBRID, LATE = f"hsdp:grads=int4/32:{ANY}", f"{SHARDED}:staleness=1"
RECIPES = [WHOLE, f"ddp:grads=lowrank=2:{ANY}", SHARDED, f"{SHARDED}:grads_within=int8/32", HYBRID]
SHAPES = {"up": torch.Size((7, 13)), "down": torch.Size((2, 40)), "bias": torch.Size((5,))}
HOSTS = [(0,), (0, 0, 1, 1), (0, 1), (0, 0, 0, 1, 1, 1), (0, 0), (0, 1, 2), (0, 0, 1, 1, 2, 2)]
CPU = torch.device("cpu")


def compression_of(text: str, hosts: tuple[int, ...]) -> Compression:
    compression = Compression(parse_recipe(text), Topology(hosts=hosts), Ledger(), None)
    per_host = hosts.count(0) if compression.recipe.hybrid else len(hosts)
    compression.num_shards = per_host if compression.recipe.stage else 1
    return compression


def residual_of(text: str, numel: int) -> Residual:
    return Residual(numel, parse_format(parse_recipe(text).residual), CPU, undoable=False)


def saved_state(text: str, hosts: tuple[int, ...]) -> dict[str, Tensor]:
    """What ranks could have saved, as far as it is dealt out: every residual that they may keep."""
    compression = compression_of(text, hosts)
    arrangement = Arrangement.of(compression)
    portions, state = portions_of(compression.recipe, arrangement), arrangement.state()
    torch.manual_seed(0)
    for rank, (name, shape) in itertools.product(range(len(hosts)), SHAPES.items()):
        for portion in portions.kept(Gradient(name=name, shape=shape), rank):
            if portion.elements:
                residual = residual_of(text, len(portion.elements))
                residual.load(torch.randn(len(portion.elements)))
                state[f"rank{rank}/residuals/{name}/{portion.part}"] = residual.stored
    return state


def entering(text: str, arrangement: Arrangement, state: dict[str, Tensor], name: str) -> Tensor:
    """What the residuals of a parameter add to its reduced gradient."""
    portions = portions_of(parse_recipe(text), arrangement)
    total = torch.zeros(SHAPES[name].numel(), dtype=torch.float64)
    for rank in range(arrangement.size):
        for portion in portions.kept(Gradient(name=name, shape=SHAPES[name]), rank):
            stored = state.get(f"rank{rank}/residuals/{name}/{portion.part}")
            if stored is not None:
                residual = residual_of(text, len(portion.elements))
                residual.load(stored)
                where = slice(portion.elements.start, portion.elements.stop)
                total[where] += portion.weight * residual.values().double()
    return total


def deal_out(text: str, present: tuple[int, ...], state: dict[str, Tensor]) -> dict[str, Tensor]:
    """What all ranks load, joined."""
    dealt: dict[str, Tensor] = {}
    for rank in range(len(present)):
        compression = compression_of(text, present)
        redistribution = Redistribution(compression, Arrangement.read(state), rank, SHAPES)
        own = redistribution.entries(state)
        assert all(entry.startswith(("shared/", f"rank{rank}/")) for entry in own)
        dealt |= own
    return dealt


@pytest.mark.parametrize(
    ("recipe", "residual"),
    [*((recipe, "fp32") for recipe in RECIPES), (SHARDED, "bf16"), (WHOLE, "int8/32")],
)
def test_what_enters_the_reduced_gradient_is_kept(recipe: str, residual: str) -> None:
    text = f"{recipe}:residual={residual}"
    # each arrangement once as the one that saved, and once as the one that goes on
    for saved, present in zip(HOSTS, HOSTS[1:] + HOSTS[:1], strict=True):
        state = saved_state(text, saved)
        dealt = deal_out(text, present, state)
        now = Arrangement.of(compression_of(text, present))
        # what is dealt out is in fp32, whatever residuals are kept in afterwards
        fp32 = text.replace(f"residual={residual}", "residual=fp32")
        for name in SHAPES:
            before = entering(text, Arrangement.read(state), state, name)
            after = entering(fp32, now, dealt, name)
            # one rounding of what is taken over: 2 ** -24 of a sum of a dozen normal numbers
            assert (after - before).abs().max() < 1e-6, (saved, present, name)


def test_shared_entries_pass_and_rows_of_replicas_do_not() -> None:
    counter = torch.tensor(7)
    state = saved_state(SHARDED, (0, 1)) | {
        "shared/counters/steps": counter,
        "rank0/replica of blocks.0/row": torch.zeros(3),
    }
    dealt = deal_out(SHARDED, (0, 1, 2), state)
    assert dealt["shared/counters/steps"] is counter
    assert not any("replica" in entry for entry in dealt)
    assert is_dealt_out("rank12/late/up")
    assert not is_dealt_out("rank0/replica of blocks.0/row")


@pytest.mark.parametrize("present", HOSTS)
def test_late_gradients_are_cut_anew(present: tuple[int, ...]) -> None:
    gradient = torch.randn(SHAPES["up"])
    padded = torch.cat([gradient.flatten(), torch.zeros(2 * 13)])  # 3 ranks of 3 rows
    state = Arrangement(hosts=(0, 1, 2), num_shards=3).state()
    state |= {f"rank{rank}/late/up": piece for rank, piece in enumerate(padded.chunk(3))}
    dealt = deal_out(LATE, present, state)
    pieces = [dealt[f"rank{rank}/late/up"] for rank in range(len(present)) if len(present) > 1]
    if not pieces:
        return  # a single rank reduces nothing
    assert len({len(piece) for piece in pieces}) == 1
    assert torch.equal(torch.cat(pieces)[: gradient.numel()], gradient.flatten())


def test_a_late_gradient_must_be_whole() -> None:
    state = Arrangement(hosts=(0, 1), num_shards=2).state()
    state |= {f"rank{rank}/late/up": torch.zeros(4 * 13) for rank in range(2)}
    with pytest.raises(StateError, match="late gradient of up that rank 1 saved is missing"):
        deal_out(LATE, (0, 0, 0), _renamed(state, "rank1/late/up", "rank1/late/down"))
    with pytest.raises(StateError, match="late gradient of up that rank 0 saved"):
        deal_out(LATE, (0, 0, 0), state | {"rank0/late/up": torch.zeros(3)})


def test_what_cannot_be_dealt_out_is_refused() -> None:
    state = saved_state(SHARDED, (0, 1))
    others = {entry: t for entry, t in state.items() if not entry.startswith("rank1/")}
    with pytest.raises(StateError, match="that of rank 1 is missing"):
        deal_out(SHARDED, (0,), others)
    with pytest.raises(StateError, match="keeps no residual 'across aside' of up"):
        deal_out(SHARDED, (0,), _renamed(state, "to 0", "aside"))
    with pytest.raises(StateError, match="is no residual of"):
        deal_out(SHARDED, (0,), state | {"rank0/residuals/up/to 0": torch.zeros(2)})
    with pytest.raises(StateError, match="has no use for the state's residuals"):
        deal_out(SHARDED.replace("true", "false"), (0,), state)
    columns = state | {"shared/arrangement/num_shards": torch.tensor(0)}
    with pytest.raises(StateError, match="by 2 of the ranks that saved it, as recipe"):
        deal_out(SHARDED, (0,), columns)
    with pytest.raises(StateError, match="by 1 of the ranks that saved it, as recipe"):
        deal_out(WHOLE, (0,), state)
    divided = state | {"shared/arrangement/divisor": torch.tensor(torch.nan)}
    with pytest.raises(StateError, match="FSDP2 divided sums of gradients by itself"):
        deal_out(SHARDED, (0,), divided)


def test_local_steps_are_dealt_out_at_a_meeting_only() -> None:
    text = f"{WHOLE}:local_steps=4"
    state = saved_state(text, (0, 1))
    state["shared/counters/local steps"] = torch.tensor(8)
    assert "rank0/residuals/up/result" in deal_out(text, (0,), state)
    state["shared/counters/local steps"] = torch.tensor(10)
    with pytest.raises(StateError, match="2 of 4 local steps after a meeting"):
        deal_out(text, (0,), state)


def _renamed(state: dict[str, Tensor], old: str, new: str) -> dict[str, Tensor]:
    return {entry.replace(old, new): tensor for entry, tensor in state.items()}
