"""The sentences: which layers a format hurts, and what was not measured."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from made_checkpoints import make_tensors
from test_inspection_inspector import INT4, INT8, MadeSource
from thinwire.formats import parse_format
from thinwire.inspection import InspectRequest, inspect
from thinwire.inspection.report import FileReport
from thinwire.inspection.verdict import conclude, describe_rest, name_some

INT2, LOG4 = parse_format("int2/64"), parse_format("log4/128")


def report(tensors: dict[str, Tensor]) -> FileReport:
    request = InspectRequest(formats=(INT8, INT4, LOG4, INT2), top=0)
    (file,) = inspect([MadeSource(tensors)], request).files
    return file


def test_none_some_and_all_are_told_apart() -> None:
    tensors = make_tensors(8)
    spoiled = ("blocks.3.mlp.weight", "blocks.5.mlp.weight")
    for name in spoiled:
        tensors[name][:, 0] *= 30
    file = report(tensors)
    some, fewer_bits = conclude(file, (INT8, INT4, LOG4, INT2), INT4)
    assert some.startswith("int4/128 hurts 2 of 9 layers: ")
    assert all(name in some for name in spoiled)
    # log levels lose about a fifth of normal numbers, and less where one dominates a block
    assert fewer_bits.startswith("log4/128 hurts 7 of 9 layers: ")
    assert "and 3 more" in fewer_bits
    (none,) = conclude(file, (INT8,), INT8)
    assert none.startswith("int8/128 hurts none of 9 layers; those that lose most: ")
    assert all(name in none for name in spoiled)  # outliers cost most in 8 bits too
    healthy = report(make_tensors(8))
    (every,) = conclude(healthy, (INT2,), INT2)
    assert every.startswith("int2/64 hurts all of 9 layers; those that lose most: ")


def test_what_was_not_measured_is_said_with_its_reason() -> None:
    tensors = make_tensors(1) | {"ids": torch.arange(3), "none": torch.ones(0)}
    tensors["embed.weight"][0, :2] = math.nan
    said = describe_rest(report(tensors))
    assert len(said) == 4
    assert said[0].startswith("NaN or Inf")
    assert "embed.weight (2)" in said[0]
    assert "blocks.0.norm.weight, blocks.0.mlp.bias" in said[1]
    assert said[2].startswith("Left out, int64")
    assert said[2].endswith(": ids.")
    assert said[3] == "Left out, holds no elements: none."


def test_a_file_of_which_nothing_was_measured() -> None:
    assert conclude(report({"norm": torch.ones(4)}), (INT4,), INT4) == ("No layer was measured.",)


@pytest.mark.parametrize(
    ("count", "said"), [(1, "a0"), (4, "a0, a1, a2, a3"), (6, "a0, a1, a2, a3 and 2 more")]
)
def test_long_lists_are_cut(count: int, said: str) -> None:
    assert name_some([f"a{index}" for index in range(count)]) == said
