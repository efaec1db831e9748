"""What the page says about the machine."""

from __future__ import annotations

import torch

from thinwire.train.machine import describe_machine


def test_the_machine_is_named_with_the_versions_that_ran() -> None:
    facts = describe_machine()
    assert torch.__version__.startswith(facts["torch"])
    assert "cores usable" in facts["processor"]
    assert all(value.strip() for value in facts.values())
