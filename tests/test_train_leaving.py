"""A rank that is done ends with its code and its words, whatever its threads still do."""

from __future__ import annotations

import subprocess
import sys

import pytest

# a thread that never ends, and would be waited for; words in buffers that nobody flushed
PROGRAM = """
import sys, threading, time
from thinwire.train.leaving import leave
threading.Thread(target=time.sleep, args=(600,)).start()
sys.stdout.write("a result")
sys.stderr.write("a reason")
leave({code})
"""


@pytest.mark.parametrize("code", [0, 1, 2])
def test_it_ends_at_once_and_loses_no_word(code: int) -> None:
    program = [sys.executable, "-c", PROGRAM.format(code=code)]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "a result", "a reason")
