"""What holds for the whole run of the tests."""

from __future__ import annotations

import signal

import pytest

# A shell that starts a program in the background makes it ignore Ctrl-C, and so would every program
# that it starts in turn; the tests of Ctrl-C need programs that a user would start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Test the wire first: one process then compiles all kernels, and later ranks load them.

    On a fresh machine the ranks of a calibration, say, would each compile the same for a minute.
    """
    items.sort(key=lambda item: not item.path.name.startswith("test_wire_"))
