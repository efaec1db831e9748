"""Rules give every parameter a format by its name."""

from __future__ import annotations

import gc
import weakref

import pytest

from thinwire.errors import ConfigError
from thinwire.formats import parse_format
from thinwire.rules import ChosenFormats, FormatRule, matches, parse_exceptions, with_other_bits

RULE = FormatRule(
    parse_format("int4/128"), parse_exceptions((("*embed*", "int8/128"), ("*0.*", "bf16")))
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("token_embedding.weight", "int8/128"),
        ("Embed.0.weight", "int8/128"),  # the first pattern, though the second matches too
        ("blocks.0.up", "bf16"),
        ("blocks.10.up", "bf16"),
        ("blocks.1.up", "int4/128"),
    ],
)
def test_the_first_match_decides_and_the_rest_is_as_usual(name: str, text: str) -> None:
    assert RULE.format_of(name) == parse_format(text)


def test_all_formats_of_a_rule_are_known_beforehand() -> None:
    assert [str(fmt) for fmt in RULE.formats] == ["int4/128", "int8/128", "bf16"]


def test_a_choice_leaves_all_others_to_the_rule() -> None:
    chosen = ChosenFormats({"blocks.0.up": parse_format("int2/128")}, RULE)
    assert str(chosen.format_of("blocks.0.up")) == "int2/128"
    assert str(chosen.format_of("blocks.0.down")) == "bf16"


def test_two_choices_are_two_sources_even_if_they_agree() -> None:
    one, other = ChosenFormats({}, RULE), ChosenFormats({}, RULE)
    layouts = weakref.WeakKeyDictionary({one: "of one", other: "of the other"})
    assert len(layouts) == 2
    del other
    gc.collect()
    assert list(layouts.values()) == ["of one"]


def test_a_pattern_matches_in_any_case() -> None:
    assert matches("*Norm*", "blocks.0.norm.weight")
    assert not matches("norm", "blocks.0.norm.weight")


@pytest.mark.parametrize("pattern", ["", "1d"])
def test_what_is_no_pattern_of_a_name_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match=r"\*embed\*"):
        parse_exceptions(((pattern, "int8"),))


@pytest.mark.parametrize(
    ("text", "others"),
    [
        ("int4/64+stochastic", [f"int{bits}/64+stochastic" for bits in range(2, 9)]),
        ("log5/32", [f"log{bits}/32" for bits in range(4, 9)]),
        ("int3/32+levels", [f"int{bits}/32+levels" for bits in range(2, 8)]),
        ("bf16", ["bf16"]),
    ],
)
def test_formats_that_differ_in_bits_only(text: str, others: list[str]) -> None:
    assert [str(fmt) for fmt in with_other_bits(parse_format(text))] == others
