"""Processes that end while reductions are under way: by the exit codes of real ones."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("ending_rank.py")
DDP = "ddp:grads=int4/128:staleness=1"
# two lines of jobs: late gradients, and the deltas of replicas
THIN = "thin:staleness=1"
# Nearly all of it is startup, 20 s on a busy machine; what hangs does so for longer.
LONGEST_S = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a rank ended."""

    code: int
    log: str


def run_ranks(folder: Path, text: str, how: str) -> list[Ending]:
    """The endings of both ranks; one that is silent on purpose is ended after the other."""
    deadline_s = time.monotonic() + LONGEST_S
    logs = [folder / "log of rank 0", folder / "log of rank 1"]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank, log in enumerate(logs):
            command = [sys.executable, str(SCRIPT), str(rank), str(folder), text, how]
            with log.open("wb") as file:
                processes.append(subprocess.Popen(command, stdout=file, stderr=file))
        for rank, process in enumerate(processes):
            if how == "silent" and rank == 1:
                process.kill()
            process.wait(max(0.0, deadline_s - time.monotonic()))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    codes = [process.returncode for process in processes]
    return [Ending(code=c, log=log.read_text()) for c, log in zip(codes, logs, strict=True)]


@pytest.mark.parametrize(
    ("text", "how", "code"),
    [
        (THIN, "end", 0),
        (DDP, "forked", 0),
        (DDP, "destroy", 3),
        (THIN, "error", 1),
    ],
)
def test_a_script_ends_as_it_says(tmp_path: Path, text: str, how: str, code: int) -> None:
    """A thread in the backend when the interpreter is torn down would abort the process."""
    for ending in run_ranks(tmp_path, text, how):
        assert ending.code == code, ending.log
        assert "trained" in ending.log
        assert "terminate called" not in ending.log
        assert ("ValueError: the next batch is broken" in ending.log) == (how == "error")


@pytest.mark.parametrize("how", ["killed", "silent"])
def test_a_rank_ends_though_its_peer_does_not_answer(tmp_path: Path, how: str) -> None:
    survivor, lost = run_ranks(tmp_path, DDP, how)
    # whoever loses its peer before its own last step has an error to tell
    codes = (0, 1) if how == "killed" else (0,)
    assert survivor.code in codes, survivor.log
    assert "terminate called" not in survivor.log
    assert lost.code == -9
