"""What the sockets of one model share: formats change when they should, and stay otherwise."""

from __future__ import annotations

from thinwire.comm.ledger import Ledger
from thinwire.comm.topology import discover_topology
from thinwire.recipes import parse_recipe
from thinwire.sharding.compression import STEPS, Compression
from world import run_world


def shared(text: str) -> Compression:
    return Compression(parse_recipe(text), discover_topology(), Ledger(), None)


def formats_body(rank: int, size: int) -> None:
    """A source of formats that is the same object keeps its layouts."""
    compression = shared("sdp4bit:grads_for=*head*>int8/64")
    before = compression.grad_formats, compression.grad_formats_within
    for _ in range(3):
        compression.count_step()
    after = compression.grad_formats, compression.grad_formats_within
    assert all(one is other for one, other in zip(before, after, strict=True))


def test_formats_stay_the_same_objects_from_step_to_step() -> None:
    run_world(formats_body, 1)


def warmup_body(rank: int, size: int) -> None:
    compression = shared("sdp4bit:warmup_steps=2")
    start = compression.counters.state()
    seen = []
    for _ in range(4):
        seen.append((str(compression.grad_formats.format_of("x")), compression.grad_formats_within))
        compression.count_step()
    assert [fmt for fmt, _ in seen] == ["fp32", "fp32", *["int4/128+stochastic+hadamard"] * 2]
    assert [within is None for _, within in seen] == [True, True, False, False]
    # a state from before the end of warm-up leads back into it
    compression.counters.load(start)
    compression.choose_formats()
    assert str(compression.grad_formats.format_of("x")) == "fp32"


def test_warm_up_ends_after_its_steps_and_begins_again_where_it_is_loaded() -> None:
    run_world(warmup_body, 1)


def undo_body(rank: int, size: int) -> None:
    compression = shared("ddp:grads=int4/128:feedback=true:staleness=1:residual_undo=true")
    compression.counters.count("passes")
    compression.undo_step()
    assert compression.counters["passes"] == 1  # what is late belongs to another step
    prompt = shared("ddp:grads=int4/128:feedback=true")
    prompt.count_step()
    prompt.counters.count("passes")
    prompt.undo_step()
    assert (prompt.counters["passes"], prompt.counters[STEPS]) == (0, 1)


def test_a_step_is_taken_back_only_where_nothing_is_late() -> None:
    run_world(undo_body, 1)
