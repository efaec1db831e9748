"""Runs that stop and go on with more or fewer ranks: nothing is lost by the restart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

import thinwire as tw
from thinwire.recipes import parse_recipe
from world import run_world

# rows: fewer than ranks, as many as none divides, a vector, and more dimensions
SHAPES = ((1, 40), (5, 33), (67,), (3, 2, 7))
MATRIX = 1
EXACT_SUMS = "exact=:min_numel=0:compute=fp32:weights=fp32"
STEPS = 2

CODED = f"grads=int3/32+stochastic:feedback=true:{EXACT_SUMS}"
ONE_HOP = [
    f"ddp:{CODED}",
    f"ddp:{CODED}:local_steps={STEPS}",
    f"ddp:grads=topk=0.1:feedback=true:staleness=1:{EXACT_SUMS}",
    f"ddp:grads=lowrank=1:feedback=true:{EXACT_SUMS}",
    f"zero2:{CODED}:staleness=1",
    f"zero3:{CODED}",
]
# a single rank chooses no bits and keeps no replica
SINGLE = [
    ONE_HOP[0],
    f"zero3:grads=int4/32:adaptive_bits=5:feedback=true:{EXACT_SUMS}",
    "thin:grads=int3/32:feedback=true:exact=:min_numel=0:compute=fp32",
]
HOPS = [
    f"zero3:{CODED}:grads_within=int4/32",
    f"zero3:grads=fp32:grads_within=int4/32:feedback=true:{EXACT_SUMS}",
    f"hsdp:{CODED}:grads_within=int4/32",
    f"hsdp:{CODED}:staleness=1",
    f"zero2:{CODED}:accumulate=within",
]

# ranks and how many of them share a host, one world after the other
Chain = tuple[tuple[int, int], ...]
# and by what FSDP2 divides sums of gradients; 0: the number of ranks
CASES: list[tuple[list[str], Chain, float]] = [
    (ONE_HOP, ((4, 1), (2, 1), (3, 1), (2, 1), (4, 1)), 0),
    (SINGLE, ((4, 1), (1, 1), (6, 1)), 0),
    (HOPS, ((4, 2), (2, 2), (2, 1), (6, 3)), 0),
    ([HOPS[0]], ((2, 1), (4, 2)), 1.5),
]


class Slope(nn.Module):
    """A parameter whose gradient is what it is given."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape))

    def forward(self, slope: Tensor) -> Tensor:
        return (self.weight * slope).sum()


class Slopes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Slope(shape) for shape in SHAPES)

    def forward(self, slopes: list[Tensor]) -> Tensor:
        total: Tensor = sum(block(s) for block, s in zip(self.blocks, slopes, strict=True))
        return total


def slopes_of(step: int, rank: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def whole_weights(model: nn.Module) -> list[Tensor]:
    detached = [p.detach() for p in model.parameters()]
    return [(p.full_tensor() if isinstance(p, DTensor) else p).clone() for p in detached]


def copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {entry: tensor.clone() for entry, tensor in state.items()}


def restart(model: nn.Module, folder: Path, size_before: int) -> None:
    """Load what another world saved, once from its ranks' files and once from all in one."""
    joined: dict[str, Tensor] = {}
    for rank in range(size_before):
        joined |= torch.load(folder / f"{rank}.pt", weights_only=True, mmap=True)
    metadata = FileSystemReader(folder).read_metadata()
    is_as_many = size_before == dist.get_world_size()
    blank = tw.blank_compression_state(metadata, every_rank=is_as_many)
    weights = model.state_dict()
    load({"model": weights, "compression": blank}, checkpoint_id=folder)
    model.load_state_dict(weights)
    assert all(torch.equal(tensor, joined[entry]) for entry, tensor in blank.items())
    tw.load_compression_state(model, blank)


def world_body(
    rank: int,
    size: int,
    texts: list[str],
    divisor: float,
    folder: str,
    first_step: int,
    size_before: int,
) -> dict[str, Any]:
    """For every recipe what was loaded, what was saved, and the weights and losses around both."""
    answers = {}
    for index, text in enumerate(texts):
        model = tw.shard(Slopes(), parse_recipe(text))
        for module in model.modules() if divisor else ():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(divisor)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        if size_before:
            restart(model, Path(folder) / f"{index} {first_step}", size_before)
        loaded, loss = copied(tw.compression_state(model)), model(slopes_of(0, 0)).item()
        for step in range(first_step, first_step + STEPS):
            optimizer.zero_grad()
            model(slopes_of(step, rank)).backward()
            optimizer.step()
        state = tw.compression_state(model)
        here = Path(folder) / f"{index} {first_step + STEPS}"
        save({"model": model.state_dict(), "compression": state}, checkpoint_id=here)
        torch.save(state, here / f"{rank}.pt")
        losses = loss, model(slopes_of(0, 0)).item()
        answers[text] = loaded, copied(state), whole_weights(model), losses
    return answers


def still_to_come(
    states: Sequence[dict[str, Tensor]], index: int, per_host: int, divisor: float
) -> Tensor:
    """What residuals and a late gradient will add to a reduced gradient, from first principles.

    ``per_host``: the ranks that share parameters under hybrid sharding; 0: it is not.
    """
    size, name, numel = len(states), f"blocks.{index}.weight", math.prod(SHAPES[index])
    parts = [
        {entry.rpartition("/")[2]: lost for entry, lost in state.items() if f"s/{name}/" in entry}
        for state in states
    ]

    def total(part: str, ranks: Sequence[int]) -> Tensor:
        found = [parts[rank][part] for rank in ranks if part in parts[rank]]
        return torch.stack(found).double().sum(0) if found else torch.zeros(0).double()

    def joined(hop: str, ranks: Sequence[int]) -> Tensor:
        return torch.cat([total(f"{hop} {receiver}", ranks) for receiver in range(size)])

    def results(part: str, ranks: Sequence[int]) -> Tensor:
        return torch.cat([total(part, [rank]) for rank in ranks])

    everyone = range(size)
    terms = [joined("to", everyone) / divisor]
    if per_host:
        places = [range(place, size, per_host) for place in range(per_host)]
        num_hosts = size // per_host
        terms.append(torch.cat([joined("across to", ranks) for ranks in places]) / num_hosts)
        terms.append(torch.cat([results("across result", ranks) for ranks in places]))
    else:
        terms += [joined(hop, everyone) / divisor for hop in ("within to", "across to")]
        terms += [total("matrix", everyone) / divisor, results("result", everyone)]
    late = [state[entry] for state in states for entry in state if entry.endswith(f"late/{name}")]
    if late:  # in stage 0 all ranks hold the same; shards are padded at the end of the last ones
        terms.append(torch.cat([piece.flatten() for piece in late])[:numel].double())
    assert {len(term) for term in terms} <= {0, numel}, (name, [len(term) for term in terms])
    return sum((term for term in terms if len(term)), torch.zeros(numel).double())


def is_sent_exactly(text: str, size: int, on_host: int) -> bool:
    """Whether these ranks send all gradients as they are, or none."""
    if size == 1:
        return not text.startswith("ddp")
    if "grads=fp32" in text:
        return on_host == 1
    is_exact_within = text.startswith("hsdp") or "accumulate=within" in text
    return is_exact_within and "grads_within" not in text and on_host == size


def has_waited(loaded: Sequence[dict[str, Tensor]], saved: Sequence[dict[str, Tensor]]) -> bool:
    """Whether residuals that ranks took over were in nobody's way: not added to what was sent."""
    return all(
        torch.equal(lost, after[entry])
        for before, after in zip(loaded, saved, strict=True)
        for entry, lost in before.items()
        if f"residuals/blocks.{MATRIX}.weight" in entry
    )


@pytest.mark.parametrize(("texts", "chain", "fixed_divisor"), CASES)
def test_what_was_lost_is_not_lost_by_a_restart(
    texts: list[str], chain: Chain, fixed_divisor: float, tmp_path: Path
) -> None:
    # the runs round sums of up to a dozen gradients of a few units to 24 bits
    rounding = 2e-6
    step, size_before = 0, 0
    reduced = {text: [torch.zeros(shape).double() for shape in SHAPES] for text in texts}
    before: dict[Any, Any] = {}
    for size, on_host in chain:
        arguments = (texts, fixed_divisor, str(tmp_path), step, size_before)
        answers = run_world(world_body, size, *arguments, ranks_per_host=on_host)
        divisor = fixed_divisor or size
        for text in texts:
            loaded, saved, weights, losses = zip(*(answer[text] for answer in answers), strict=True)
            per_host = on_host if text.startswith("hsdp") else 0
            for index in range(len(SHAPES)):
                for num in range(step, step + STEPS):
                    for rank in range(size):
                        reduced[text][index] += slopes_of(num, rank)[index].double() / divisor
                carried = still_to_come(loaded, index, per_host, divisor)
                assert carried.sub(before.get((text, index), 0)).abs().max() < rounding, text
                carried = still_to_come(saved, index, per_host, divisor)
                applied = -weights[0][index].double().flatten()
                missing = applied + carried - reduced[text][index].flatten()
                # the outer step of local steps has a rate and a momentum of its own
                assert "local_steps" in text or missing.abs().max() < rounding, (text, size)
                before[text, index] = carried
            if size_before:
                assert has_waited(loaded, saved) == is_sent_exactly(text, size, on_host), text
            # a restart that forgets would lose more than rounding; some forms are sent exactly
            assert before[text, MATRIX].abs().mean() > 0.01, text
            if text.startswith("thin"):
                continue  # replicas are within a delta of the weights, and made anew from these
            # every rank sees what all saw before: weights travel in fp32
            assert {loss for loss, _ in losses} == {before.get(text, 0.0)}, text
            (before[text],) = {loss for _, loss in losses}
        step, size_before = step + STEPS, size
