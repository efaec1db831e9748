"""A residual is kept in its format, stays finite, and can become what it was."""

from __future__ import annotations

import pytest
import torch

from thinwire.errors import StateError
from thinwire.formats import parse_format
from thinwire.wire.residual import Residual

CPU = torch.device("cpu")
LOST = torch.linspace(-1, 1, 200)


def made(text: str = "fp32", *, undoable: bool = False) -> Residual:
    return Residual(200, parse_format(text), CPU, undoable=undoable)


@pytest.mark.parametrize(
    ("text", "largest_error"),
    # exact; half a unit in the last of 8 bits; half of one of 127 levels below 1
    [("fp32", 0.0), ("bf16", 2.0**-9), ("int8/64", 0.5 / 127 * (1 + 2.0**-16))],
)
def test_it_begins_at_zero_and_holds_what_was_lost(text: str, largest_error: float) -> None:
    residual = made(text)
    assert not residual.values().any()
    residual.renew(LOST, 0.0, step=0)
    assert (residual.values() - LOST).abs().max() <= largest_error


@pytest.mark.parametrize("text", ["fp32", "bf16", "int8/64"])
def test_it_takes_the_bytes_of_its_format(text: str) -> None:
    once, twice = made(text), made(text, undoable=True)
    for residual in (once, twice):
        residual.renew(LOST, 0.0, step=0)
    assert once.nbytes == parse_format(text).wire_bytes(200)
    assert twice.nbytes == 2 * once.nbytes


@pytest.mark.parametrize("text", ["fp32", "int8/64"])
@pytest.mark.parametrize("average", [0.0, 0.5])
def test_where_a_loss_is_not_finite_it_stays(text: str, average: float) -> None:
    residual = made(text)
    residual.renew(LOST, 0.0, step=0)
    before = residual.values().clone()
    lost = LOST.clone()
    lost[:64] = torch.inf
    residual.renew(lost, average, step=1)
    # what stays is averaged with itself, or encoded once more: both exact to fp32 rounding
    torch.testing.assert_close(residual.values()[:64], before[:64], rtol=1e-6, atol=0)
    assert residual.values().isfinite().all()


def test_a_step_is_taken_back_once_and_only_if_it_changed_something() -> None:
    residual = made(undoable=True)
    residual.renew(LOST, 0.0, step=0)
    residual.renew(2 * LOST, 0.0, step=0)
    residual.undo(step=1)
    assert torch.equal(residual.values(), 2 * LOST)
    residual.clear(step=1)
    residual.undo(step=1)
    residual.undo(step=1)
    assert torch.equal(residual.values(), 2 * LOST)


@pytest.mark.parametrize("saved", ["fp32", "bf16", "int8/64"])
@pytest.mark.parametrize("loading", ["fp32", "bf16", "int8/64"])
def test_it_continues_from_floats_in_any_format_and_from_bytes_in_their_own(
    saved: str, loading: str
) -> None:
    source, target = made(saved), made(loading)
    source.renew(LOST, 0.0, step=0)
    if saved == "int8/64" and loading != saved:
        with pytest.raises(StateError, match="the recipe's residual is not the one"):
            target.load(source.stored)
        return
    target.load(source.stored)
    # two roundings of at most 1 / 254, the coarser of the formats
    assert (target.values() - LOST).abs().max() <= 2 / 254 * 1.001
    source.clear(step=1)
    assert target.values().any()  # a copy


@pytest.mark.parametrize("stored", [torch.zeros(199), torch.zeros(200, dtype=torch.int64)])
def test_what_is_no_residual_is_refused(stored: torch.Tensor) -> None:
    with pytest.raises(StateError, match="is no residual of 200 elements in fp32"):
        made().load(stored)
