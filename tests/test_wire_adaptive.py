"""Bits go where they are missed most, within the budget, the same on every rank."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from thinwire.errors import ConfigError, StateError
from thinwire.formats import parse_format
from thinwire.wire import Key, decode, encode
from thinwire.wire.adaptive import AdaptiveFormats, squared_error
from thinwire.wire.budget import ByteBudget, ErrorBudget

CANDIDATES = [parse_format(text) for text in ("int2/32", "int4/32", "int6/32", "int8/32")]


def _layers() -> dict[str, Tensor]:
    """One layer of ordinary size, one of small values, and one whose loss dwarfs the others."""
    generator = torch.Generator().manual_seed(0)
    return {
        "loud": torch.randn(4000, generator=generator) * 10,
        "plain": torch.randn(4000, generator=generator),
        "quiet": torch.randn(4000, generator=generator) / 100,
    }


def _formats(mean_bits: float = 5.0) -> AdaptiveFormats:
    return AdaptiveFormats(
        {name: [layer.numel()] for name, layer in _layers().items()},
        CANDIDATES,
        ByteBudget(mean_bits),
    )


def _observed(formats: AdaptiveFormats) -> AdaptiveFormats:
    for name, layer in _layers().items():
        formats.observe(name, layer, Key())
    return formats


def test_the_loss_is_what_decoding_shows() -> None:
    values = _layers()["plain"].bfloat16()
    for text in ("int4/32", "int8/32+stochastic", "e4m3/32"):
        fmt, key = parse_format(text), Key(seed=3)
        lost = decode(encode(values.float(), fmt, key=key)).double() - values.double()
        assert math.isclose(
            squared_error(values, fmt, key), float(lost.square().sum()), rel_tol=1e-6
        )


def test_before_the_first_choice_all_travel_alike_within_the_budget() -> None:
    formats = _formats(mean_bits=5.0)
    assert {str(formats.format_of(name)) for name in formats.names} == {"int4/32"}
    assert formats.wire_bytes <= 5.0 / 8 * 12000


def test_bits_go_where_they_are_missed() -> None:
    formats = _observed(_formats())
    formats.choose(formats.losses())
    bits = {name: formats.format_of(name).bits for name in formats.names}
    assert bits == {"loud": 6, "plain": 4, "quiet": 2}
    assert formats.wire_bytes <= 5.0 / 8 * 12000


def test_the_total_loss_is_not_larger_than_that_of_one_format_for_all() -> None:
    formats = _observed(_formats())
    losses = formats.losses()
    formats.choose(losses)
    rows = [formats.candidates.index(formats.format_of(name)) for name in formats.names]
    chosen = sum(losses[row, column] for row, column in enumerate(rows))
    assert chosen < losses[:, 1].sum() / 4  # int4 for all takes as many bytes


def test_ranks_decide_alike_from_summed_losses() -> None:
    ranks = [_formats() for _ in range(3)]
    for index, formats in enumerate(ranks):
        for name, layer in _layers().items():
            formats.observe(name, layer * (index + 1), Key(rank=index))
    total = torch.stack([formats.losses() for formats in ranks]).sum(0)
    for formats in ranks:
        formats.choose(total)
    assert len({tuple(map(formats.format_of, formats.names)) for formats in ranks}) == 1


def test_a_choice_begins_to_observe_afresh() -> None:
    formats = _observed(_formats())
    formats.choose(formats.losses())
    assert (formats.losses() == 0).all()


def test_a_gradient_that_is_not_finite_says_nothing_about_formats() -> None:
    formats = _observed(_formats())
    before = formats.losses()
    formats.observe("loud", torch.full((4000,), math.nan), Key())
    assert torch.equal(formats.losses(), before)


@pytest.mark.parametrize("odd", [0.0, math.nan, math.inf])
@pytest.mark.parametrize("budget", [ByteBudget(5.0), ErrorBudget(0.05)])
def test_a_layer_of_which_nothing_is_known_keeps_its_format(
    budget: ByteBudget | ErrorBudget, odd: float
) -> None:
    layers = _layers()
    parts = {name: [layer.numel()] for name, layer in layers.items()}
    formats = AdaptiveFormats(parts, CANDIDATES, budget)
    first = formats.format_of("loud")
    formats.observe("loud", torch.full((4000,), odd), Key())
    formats.observe("plain", layers["plain"], Key())
    formats.observe("quiet", layers["quiet"], Key())
    formats.choose(formats.losses())
    assert formats.format_of("loud") == first
    assert formats.format_of("quiet") != formats.format_of("plain")  # the others were chosen
    assert formats.wire_bytes <= 5.0 / 8 * 12000 or isinstance(budget, ErrorBudget)


@pytest.mark.parametrize("budget", [ByteBudget(5.0), ErrorBudget(0.05)])
def test_where_nothing_is_known_of_any_layer_all_keep_their_formats(
    budget: ByteBudget | ErrorBudget,
) -> None:
    formats = AdaptiveFormats({"a": [4000], "b": [8000]}, CANDIDATES, budget)
    formats.take([CANDIDATES[0], CANDIDATES[1]])
    formats.choose(formats.losses())
    assert [formats.format_of(name) for name in formats.names] == CANDIDATES[:2]


def test_formats_chosen_within_a_larger_budget_are_not_kept() -> None:
    formats = _formats(mean_bits=5.0)
    formats.take([CANDIDATES[-1]] * 3)
    formats.observe("plain", _layers()["plain"], Key())
    formats.choose(formats.losses())
    assert str(formats.format_of("loud")) == "int4/32"  # the first one
    assert formats.wire_bytes <= 5.0 / 8 * 12000


# the squares of both sizes are beyond float32, and the numbers are not
@pytest.mark.parametrize("size", [2.0**-110, 2.0**100])
def test_layers_of_any_size_are_told_apart(size: float) -> None:
    formats, scaled = _observed(_formats()), _formats()
    for name, layer in _layers().items():
        scaled.observe(name, layer * size, Key())
    for one in (formats, scaled):
        one.choose(one.losses())
    for name in formats.names:
        assert scaled.format_of(name) == formats.format_of(name)


def test_what_cannot_be_chosen_from_is_refused() -> None:
    with pytest.raises(ConfigError, match="were given int4/128: offer for example"):
        AdaptiveFormats({"a": [10]}, [parse_format("int4")], ByteBudget(5.0))
    with pytest.raises(ConfigError, match="were given none"):
        AdaptiveFormats({"a": [10]}, [], ByteBudget(5.0))
    with pytest.raises(ConfigError, match="raise the mean bits, or offer a smaller format"):
        AdaptiveFormats({"a": [1000]}, CANDIDATES, ByteBudget(1.0))
    with pytest.raises(StateError, match="'b' is not among the 1 whose formats adapt"):
        AdaptiveFormats({"a": [1000]}, CANDIDATES, ByteBudget(8.0)).format_of("b")
    with pytest.raises(StateError, match=r"have shape \(2, 5\), and \(3, 5\) are needed"):
        _formats().choose(torch.zeros(2, 5))
    with pytest.raises(StateError, match="3 formats among int2/32, int4/32"):
        _formats().take([CANDIDATES[0]])


def test_a_choice_can_be_taken_again() -> None:
    formats, resumed = _observed(_formats()), _formats()
    formats.choose(formats.losses())
    chosen = [formats.format_of(name) for name in formats.names]
    resumed.take(chosen)
    assert [resumed.format_of(name) for name in resumed.names] == chosen
    assert resumed.wire_bytes == formats.wire_bytes


def test_parts_are_counted_with_their_own_ragged_blocks() -> None:
    parts = {"a": [33, 33, 34], "b": [5, 0, 0]}
    formats = AdaptiveFormats(parts, CANDIDATES, ByteBudget(16.0))
    total = sum(CANDIDATES[-1].wire_bytes(numel) for numel in (33, 33, 34, 5, 0, 0))
    assert formats.wire_bytes == total <= 16.0 / 8 * 105


@pytest.mark.parametrize("relative", [0.3, 0.05, 0.01])
def test_an_error_is_kept_to_in_fewer_bytes_than_one_format_for_all_takes(relative: float) -> None:
    layers = _layers()
    parts = {name: [layer.numel()] for name, layer in layers.items()}
    formats = AdaptiveFormats(parts, CANDIDATES, ErrorBudget(relative))
    assert {str(formats.format_of(name)) for name in parts} == {"int8/32"}  # nothing is known yet
    formats.choose(_observed(formats).losses())
    lost = sum(
        squared_error(layer, formats.format_of(name), Key()) for name, layer in layers.items()
    )
    square = sum(float(layer.double().square().sum()) for layer in layers.values())
    assert lost <= relative**2 * square
    enough = [
        fmt
        for fmt in CANDIDATES
        if sum(squared_error(x, fmt, Key()) for x in layers.values()) <= relative**2 * square
    ]
    assert formats.wire_bytes < sum(enough[0].wire_bytes(x.numel()) for x in layers.values())


def test_an_error_that_no_format_keeps_to_is_told_and_the_least_one_taken() -> None:
    parts = {name: [layer.numel()] for name, layer in _layers().items()}
    formats = _observed(AdaptiveFormats(parts, CANDIDATES, ErrorBudget(1e-5)))
    with pytest.warns(UserWarning, match="give grads smaller blocks"):
        formats.choose(formats.losses())
    assert {str(formats.format_of(name)) for name in parts} == {"int8/32"}
