"""Layouts: every real element has exactly one place, padding has none."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from thinwire.comm.layout import Piece, ShardLayout, even_piece_numel, row_piece_numel
from thinwire.formats import parse_format

INT8 = parse_format("int8/128")

shapes = st.lists(st.integers(0, 9), min_size=1, max_size=4).map(tuple)
worlds = st.integers(1, 9)


@given(shape=shapes, world_size=worlds)
def test_rows_are_dealt_out_completely(shape: tuple[int, ...], world_size: int) -> None:
    piece_numel = row_piece_numel(shape, world_size)
    assert piece_numel * world_size >= math.prod(shape)
    row = math.prod(shape[1:])
    assert piece_numel % max(row, 1) == 0


@given(numel=st.integers(0, 5000), world_size=worlds, block=st.sampled_from([1, 8, 128]))
def test_even_pieces_begin_at_blocks(numel: int, world_size: int, block: int) -> None:
    piece_numel = even_piece_numel(numel, world_size, block)
    assert piece_numel % block == 0
    assert piece_numel * world_size >= numel
    # no rank gets a whole block more than it needs
    assert piece_numel < -(-numel // world_size) + block


@given(numel=st.integers(0, 5000), piece_numel=st.integers(1, 5000), world_size=worlds)
def test_real_elements_add_up(numel: int, piece_numel: int, world_size: int) -> None:
    numel = min(numel, piece_numel * world_size)
    piece = Piece(name="p", numel=numel, piece_numel=piece_numel, format=INT8)
    real = [piece.real_numel(rank) for rank in range(world_size)]
    assert sum(real) == numel
    assert real == sorted(real, reverse=True)


@given(numels=st.lists(st.integers(0, 3000), max_size=5), world_size=worlds)
def test_rank_0_has_the_longest_payload(numels: list[int], world_size: int) -> None:
    layout = ShardLayout(
        (
            Piece(
                name=f"p{index}",
                numel=numel,
                piece_numel=row_piece_numel((numel,), world_size),
                format=INT8,
            )
            for index, numel in enumerate(numels)
        ),
        world_size,
    )
    assert len(layout.packings) == world_size
    assert layout.slot_bytes == layout.packings[0].wire_bytes
    assert all(packing.numel == layout.slot_numel for packing in layout.packings)
