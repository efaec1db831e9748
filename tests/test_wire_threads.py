"""Blocks on several threads: all of them, each once, and the same bits."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
import torch

from thinwire.formats import parse_format
from thinwire.wire import codec_for
from thinwire.wire.kernels.threads import over_blocks
from wire_cases import CPU, decoded, encoded

LARGE = 1 << 20


@pytest.fixture(autouse=True)
def _same_threads_afterwards() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("num_threads", [1, 2, 3, 7])
@pytest.mark.parametrize("num_blocks", [1, 2, 5, 1000])
def test_ranges_cover_all_blocks_once(num_threads: int, num_blocks: int) -> None:
    torch.set_num_threads(num_threads)
    ranges: list[tuple[int, int]] = []
    over_blocks(lambda first, last: ranges.append((first, last)), num_blocks, 8 * LARGE)
    blocks = [block for first, last in sorted(ranges) for block in range(first, last)]
    assert blocks == list(range(num_blocks))
    assert len(ranges) == min(num_threads, num_blocks)


def test_ranges_run_at_the_same_time() -> None:
    torch.set_num_threads(2)
    both = threading.Barrier(2)  # one alone would wait until it breaks
    over_blocks(lambda first, last: both.wait(timeout=60), 2, LARGE)


def test_a_small_tensor_wakes_no_thread() -> None:
    torch.set_num_threads(2)
    callers: list[int] = []
    over_blocks(lambda first, last: callers.append(threading.get_ident()), 1000, 128_000)
    assert callers == [threading.get_ident()]


def test_an_error_in_another_thread_arrives() -> None:
    torch.set_num_threads(2)

    def fails(first: int, last: int) -> None:
        if first:
            raise ValueError(f"blocks {first} to {last}")

    with pytest.raises(ValueError, match="blocks 5 to 10"):
        over_blocks(fails, 10, LARGE)


@pytest.mark.parametrize(
    "text",
    [
        "int4/128+stochastic",
        "int3/24+asym",
        "int4/128+levels",
        "log5/128",
        "e4m3/64+stochastic",
        "sign/128",
    ],
)
def test_the_number_of_threads_changes_no_bit(text: str) -> None:
    codec = codec_for(parse_format(text), CPU)
    x = torch.randn(LARGE + 77, generator=torch.Generator().manual_seed(3))
    torch.set_num_threads(1)
    payload = encoded(codec, x)
    values = decoded(codec, payload, x.numel(), torch.float32)
    for num_threads in (2, 3):
        torch.set_num_threads(num_threads)
        assert torch.equal(payload, encoded(codec, x))
        assert torch.equal(values, decoded(codec, payload, x.numel(), torch.float32))


def test_a_forked_process_has_threads_of_its_own() -> None:
    torch.set_num_threads(2)
    over_blocks(lambda first, last: None, 10, LARGE)  # starts a thread, which no child inherits
    child = os.fork()
    if child == 0:
        ranges: list[tuple[int, int]] = []
        over_blocks(lambda first, last: ranges.append((first, last)), 10, LARGE)
        os._exit(0 if len(ranges) == 2 else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
