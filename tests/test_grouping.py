"""Neighbours in groups of a limited number of bytes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinwire.errors import ConfigError
from thinwire.grouping import DEFAULT_GROUP_BYTES, consecutive_groups
from thinwire.recipes import format_recipe, parse_recipe

SIZES = st.lists(st.integers(0, 100), max_size=30)


@given(SIZES, st.integers(0, 300))
def test_groups_keep_the_order_and_the_limit_and_cannot_be_fewer(
    sizes: list[int], limit: int
) -> None:
    groups = consecutive_groups(sizes, limit)
    assert [index for group in groups for index in group] == list(range(len(sizes)))
    for group in groups:
        assert len(group) == 1 or sum(sizes[index] for index in group) <= limit
    for group, following in itertools.pairwise(groups):
        # the next one did not fit, or there are no groups
        assert not limit or sum(sizes[i] for i in group) + sizes[following.start] > limit


def test_the_picture_of_the_docstring() -> None:
    sizes = [300, 200, 900, 100, 100, 100]
    assert consecutive_groups(sizes, 600) == [range(0, 2), range(2, 3), range(3, 6)]
    assert consecutive_groups(sizes, 0) == [range(index, index + 1) for index in range(6)]


def test_what_recipes_group() -> None:
    assert parse_recipe("thin").grouped_bytes == DEFAULT_GROUP_BYTES
    assert parse_recipe("thin:group_bytes=0").grouped_bytes == 0
    assert parse_recipe("thin:group_bytes=4096").grouped_bytes == 4096
    # PyTorch's own collectives sum in an order that depends on groups
    for stock in ("zero1", "zero2", "zero3", "hpz", "zero3:hybrid=true", "ddp", "ddp_topk"):
        assert parse_recipe(stock).grouped_bytes == 0
    assert parse_recipe("zero3:group_bytes=4096").grouped_bytes == 4096


def test_it_is_written_and_read_back() -> None:
    recipe = parse_recipe("thin:group_bytes=4096")
    assert "group_bytes = 4096" in format_recipe(recipe)
    assert "group_bytes" not in format_recipe(parse_recipe("thin"))
    assert parse_recipe("thin:group_bytes=none") == parse_recipe("thin")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("thin:group_bytes=-1", "group_bytes: -1 is below 0"),
        ("thin:group_bytes=1.5", "not a whole number"),
        ("thin:group_bytes=1MB", "not a whole number"),
        ("ddp:group_bytes=0", "group_bytes and stage"),
    ],
)
def test_what_cannot_be_grouped_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_recipe(text)
