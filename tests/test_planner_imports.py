"""The planner loads no torch, and none of what only a page needs; this is seen from outside."""

from __future__ import annotations

import subprocess
import sys

import pytest

PLAN = """
import sys
from thinwire.planner.candidates import named_recipes
from thinwire.planner.ranking import make_plan
from thinwire.planner.request import ClusterRequest, PlanRequest
from thinwire.planner.estimate import estimate
from thinwire.planner.validation import validate
import thinwire.cli.plan, thinwire.cli.estimate, thinwire.cli.validate
cluster = ClusterRequest(hosts=2, ranks=2, device="a100-40gb", link="10gbit")
setting = PlanRequest(model="llama-2-7b", cluster=cluster).setting()
make_plan(setting, named_recipes(setting))
"""
LOADED = "print(' '.join(name for name in {names!r} if name in sys.modules))"
HEAVY = ("torch", "numpy", "numba", "matplotlib", "transformers")


def loaded_by(code: str) -> list[str]:
    script = code + LOADED.format(names=HEAVY)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_planning_loads_nothing_heavy() -> None:
    assert loaded_by(PLAN) == []


@pytest.mark.parametrize("name", ["torch", "numpy"])
def test_this_test_can_fail(name: str) -> None:
    assert name in loaded_by(f"{PLAN}\nimport {name}\n")
