"""What is no format, number or shape is refused with what to write, not met inside a codec."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from thinwire.errors import FormatError
from thinwire.formats import WireFormat, parse_format

# What arguments from JSON, from numpy or from a slip of the pen look like.
ODD: tuple[Any, ...] = (None, "3", 3.5, 128.0, True, [3], b"int4", float("nan"))


@pytest.mark.parametrize("odd", [value for value in ODD if value != "3"])
def test_what_is_no_text_is_no_format(odd: Any) -> None:
    with pytest.raises(FormatError, match="a format is a text such as 'int4/128', not"):
        parse_format(odd)


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("text", ["bf16", "int4/128", "topk=0.01", "lowrank=4", "lowrank=4/3x1"])
def test_what_is_no_number_of_elements_is_refused(text: str, odd: Any) -> None:
    fmt = parse_format(text)
    asked: tuple[Callable[[Any], object], ...] = (fmt.wire_bytes, fmt.bits_per_element)
    for ask in asked:
        with pytest.raises(FormatError, match=r"whole number, not .*: use x\.numel\(\)"):
            ask(odd)


NO_SHAPES: tuple[Any, ...] = (None, "3", 3, 3.5, True, (2.5, 3), (-1, 3), ("4", 4), [None])


@pytest.mark.parametrize("odd", NO_SHAPES)
@pytest.mark.parametrize("text", ["bf16", "int4/128", "topk=0.01", "lowrank=4"])
def test_what_is_no_shape_is_refused(text: str, odd: Any) -> None:
    with pytest.raises(FormatError, match=r"whole numbers, such as \(64, 32\).*: use x\.shape"):
        parse_format(text).wire_bytes_of(odd)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"family": None}, "family"),
        ({"family": ["int"]}, "family"),
        ({"bits": "4"}, "bits"),
        ({"bits": 4.0}, "bits"),
        ({"block": "128"}, "block"),
        ({"block": 128.0}, "block"),
        ({"block": True}, "block"),
        ({"options": ["asym"]}, "options"),
        ({"options": "asym"}, "options"),
        ({"options": frozenset((1,))}, "options"),
        ({"options": frozenset(("clip",)), "percentile": 99}, "percentile"),
        ({"family": "topk", "bits": 32, "block": None, "share": 0.01}, "share"),
        ({"family": "lowrank", "bits": 32, "block": None, "rank": "4"}, "rank"),
        ({"family": "lowrank", "bits": 32, "block": None, "rank": 4, "shape": (64,)}, "shape"),
        ({"family": "lowrank", "bits": 32, "block": None, "rank": 4, "shape": [6, 4]}, "shape"),
        ({"family": "lowrank", "bits": 32, "block": None, "rank": 4, "shape": (6, "4")}, "shape"),
        ({"family": "lowrank", "bits": 32, "block": None, "rank": 4, "shape": (6, 4.0)}, "shape"),
    ],
)
def test_a_field_of_another_type_is_named(fields: dict[str, Any], named: str) -> None:
    whole: dict[str, Any] = {"family": "int", "bits": 4, "block": 128}
    with pytest.raises(FormatError, match=named):
        WireFormat(**(whole | fields))


def test_fields_of_the_right_types_pass() -> None:
    assert WireFormat(family="int", bits=4, block=128) == parse_format("int4")
    clipped = parse_format("int4+clip=99")
    assert clipped.percentile == Decimal(99)
    assert parse_format("topk=0.01").wire_bytes_of([10, 10]) == parse_format(
        "topk=0.01"
    ).wire_bytes(100)


def test_low_rank_of_one_shape_is_for_that_shape() -> None:
    bound = parse_format("lowrank=4/3x3")
    for shape in ((9, 1), (3, 4), (1, 3, 3), (4, 4)):
        for ask in (bound.for_shape, bound.wire_bytes_of, bound.factors_of):
            with pytest.raises(FormatError, match=r"is for one shape.*write 'lowrank=4'"):
                ask(shape)
    assert bound.for_shape((3, 3)) == bound
    assert parse_format("lowrank=4/3x6").for_shape((3, 2, 3)) == parse_format("lowrank=4/3x6")
