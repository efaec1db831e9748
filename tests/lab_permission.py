"""The marks of tests that need a real lab, and the reason shown where there can be none."""

from __future__ import annotations

import pytest

from thinwire.lab import lab_obstacle

OBSTACLE = lab_obstacle(shaped=True)

NEEDS_LAB = [
    pytest.mark.lab,
    pytest.mark.skipif(OBSTACLE is not None, reason=f"no lab here: {OBSTACLE}"),
]
"""For `pytestmark`. What happens without the privilege is tested in test_lab_privilege."""
