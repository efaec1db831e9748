"""The lab as others use it: its public names, no torch inside, and torch on top of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import thinwire.lab
from lab_permission import OBSTACLE
from thinwire.lab import Lab, Layout, Loopback, launch

REDUCE = """
import torch, torch.distributed as dist

dist.init_process_group("gloo")
ranks = torch.full((1000,), float(dist.get_rank()))
dist.all_reduce(ranks)
print(ranks.sum().item())
dist.destroy_process_group()
"""


def test_public_names_exist() -> None:
    assert sorted(thinwire.lab.__all__) == thinwire.lab.__all__
    for name in thinwire.lab.__all__:
        assert getattr(thinwire.lab, name).__doc__, name


def loaded_by(statement: str) -> bool:
    code = f"import sys; {statement}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout == "True\n"


def test_the_lab_loads_no_torch() -> None:
    assert not loaded_by("import thinwire.lab")
    assert loaded_by("import torch")  # the proof that the line above can fail


@pytest.mark.parametrize("network", ["loopback", pytest.param("lab", marks=pytest.mark.lab)])
def test_gloo_meets_on_it(network: str) -> None:
    if network == "lab" and OBSTACLE is not None:
        pytest.skip(f"no lab here: {OBSTACLE}")
    layout = Layout(hosts=2, ranks_per_host=1, link_bit_per_s=200e6)
    sums = []
    with Lab(layout) if network == "lab" else Loopback(layout) as opened:
        launch(
            opened,
            [sys.executable, "-c", REDUCE],
            on_line=lambda rank, line: sums.append(float(line)),
            timeout_s=100,
        )
        for counters in opened.counters():
            # Each of the two sends at least its 1000 values of 4 bytes.
            assert counters.sent_bytes >= 4000
    assert sums == [1000.0, 1000.0]
