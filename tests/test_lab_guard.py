"""The guard: at the end of its pipe it kills the groups noted, and no others."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from thinwire.lab import guard

SCRIPT = [sys.executable, "-I", "-S", str(Path(guard.__file__))]


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "600"], start_new_session=True)


def test_it_kills_the_groups_that_are_left() -> None:
    with sleeper() as noted, sleeper() as forgotten, sleeper() as unknown:
        try:
            script = f"{noted.pid}\n{forgotten.pid}\n-{forgotten.pid}\n"
            subprocess.run(SCRIPT, input=script, text=True, timeout=10, check=True)
            assert noted.wait(10) == -signal.SIGKILL
            assert forgotten.poll() is None
            assert unknown.poll() is None
        finally:
            for process in (noted, forgotten, unknown):
                process.kill()


def test_a_group_that_has_ended_is_no_error() -> None:
    with sleeper() as ended:
        ended.kill()
    subprocess.run(SCRIPT, input=f"{ended.pid}\n", text=True, timeout=10, check=True)
