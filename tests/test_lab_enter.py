"""The script that becomes a rank: it starts only for its launcher, and says why when it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from thinwire.lab import enter

SCRIPT = [sys.executable, "-I", "-S", str(Path(enter.__file__))]
ECHO = ["echo", "started"]


def run(launcher_pid: int, namespace: str, program: list[str]) -> subprocess.CompletedProcess[str]:
    command = [*SCRIPT, str(launcher_pid), namespace, *program]
    return subprocess.run(command, capture_output=True, text=True, timeout=30)


def test_it_becomes_the_program() -> None:
    done = run(os.getpid(), "-", ECHO)
    assert (done.returncode, done.stdout) == (0, "started\n")


def test_it_does_not_start_for_a_launcher_that_is_gone() -> None:
    # The kernel kills a rank when its launcher dies later; this is for one that died before.
    done = run(os.getpid() + 1, "-", ECHO)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_program_that_cannot_be_started_is_named() -> None:
    done = run(os.getpid(), "-", ["/dev/null/program"])
    assert done.returncode == 127
    expected = "thinwire: error: '/dev/null/program' cannot be started: Not a directory\n"
    assert done.stderr == expected


def test_a_namespace_that_cannot_be_entered_is_an_error() -> None:
    done = run(os.getpid(), "999", ECHO)
    assert (done.returncode, done.stdout) == (127, "")
    assert done.stderr == "thinwire: error: setns: Bad file descriptor\n"


def test_a_rank_dies_with_its_launcher() -> None:
    # The launcher in between is killed; its rank, which holds our pipe, ends and so closes it.
    launcher = f"""
import os, signal, subprocess
rank = subprocess.Popen([*{SCRIPT!r}, str(os.getpid()), "-", "sh", "-c", "echo up; exec sleep 600"])
signal.pause()
"""
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", launcher], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    process.kill()
    rest, _ = process.communicate(timeout=10)
    assert rest == b""
