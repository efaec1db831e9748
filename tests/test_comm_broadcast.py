"""The counted broadcast: everyone has what rank 0 has, and every rank's bytes are those it sent."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from lab_permission import NEEDS_LAB
from thinwire.comm import stock
from thinwire.comm.ledger import Ledger, LedgerReport
from thinwire.comm.topology import discover_topology
from thinwire.lab import Lab, Layout, launch
from world import run_world

DTYPES = (torch.float32, torch.int64, torch.bool, torch.bfloat16)


def broadcast_body(rank: int, size: int) -> LedgerReport:
    """Values of several dtypes, one a view that is not contiguous, one without elements."""
    group = dist.group.WORLD
    assert group is not None
    generator = torch.Generator().manual_seed(rank)
    tensors = [torch.randint(0, 2, (7, 3), generator=generator).to(dtype) for dtype in DTYPES]
    tensors += [torch.randn(6, 4, generator=generator).t(), torch.empty(0)]
    ledger = Ledger()
    stock.broadcast(tensors, discover_topology().peers(group), ledger)
    generator.manual_seed(0)
    for tensor, dtype in zip(tensors, DTYPES, strict=False):
        assert torch.equal(tensor, torch.randint(0, 2, (7, 3), generator=generator).to(dtype))
    assert torch.equal(tensors[-2], torch.randn(6, 4, generator=generator).t())
    return ledger.report()


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6])
def test_everyone_has_what_the_first_rank_has_and_was_told_once(size: int) -> None:
    reports: list[LedgerReport] = run_world(broadcast_body, size, ranks_per_host=2)
    nbytes = 21 * (4 + 8 + 1 + 2) + 24 * 4
    assert sum(report["sent_bytes"] for report in reports) == (size - 1) * nbytes
    # rank 0 tells a rank in every turn, and the ranks that know double in each
    assert reports[0]["sent_bytes"] == (size - 1).bit_length() * nbytes
    for report in reports:
        (entry,) = report["collectives"]
        assert entry["formats"] == ["bf16", "bool", "fp32", "int64"]
        assert entry["bf16_bytes"] == report["sent_bytes"]
    # ranks 0 and 1, 2 and 3, 4 and 5 share hosts: in the first turn alone 0 tells its neighbour
    assert reports[0]["within_bytes"] == min(size - 1, 1) * nbytes


class TestOnAWire:
    pytestmark = NEEDS_LAB

    def test_every_rank_sends_what_its_ledger_says(self) -> None:
        program = Path(__file__).with_name("broadcasting_rank.py")
        told: dict[int, dict[str, int]] = {}
        with Lab(Layout(hosts=6, ranks_per_host=1)) as lab:
            launch(
                lab,
                [sys.executable, str(program), "400000"],
                on_line=lambda rank, line: told.update({rank: json.loads(line)}),
                timeout_s=100,
            )
        # 0 tells 1, 2 and 4, 1 tells 3 and 5, and the others nobody
        assert {rank for rank, found in told.items() if found["ledger"]} == {0, 1}
        for rank, found in told.items():
            # headers of large buffers, acknowledgements of what came, and the barriers: 3 % of
            # the 16 MB that a rank tells or is told
            slack = 0.03 * 16e6
            assert abs(found["interface"] - found["ledger"]) < slack, (rank, found)
