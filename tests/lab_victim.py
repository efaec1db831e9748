"""A program that runs ranks until it ends in the way that a test wants.

    python lab_victim.py lab|loopback return|raise|wait

It prints the path of a host's namespace, or `-`, once every rank runs with a child of its own.
Then it returns out of its blocks, raises, or waits to be killed.
"""

from __future__ import annotations

import contextlib
import sys

from thinwire.lab import Lab, Layout, Loopback, launch

# Each rank starts a process that would stay for ten minutes, and waits for it.
RANK = """
import subprocess
child = subprocess.Popen(["sleep", "600"])
print(flush=True)
child.wait()
"""


def main(network: str, ending: str) -> None:
    layout = Layout(hosts=2, ranks_per_host=2, link_bit_per_s=1e9)
    with Lab(layout) if network == "lab" else Loopback(layout) as opened:
        path = opened._hosts[0].path if isinstance(opened, Lab) else "-"
        running: set[int] = set()

        def on_line(rank: int, line: str) -> None:
            running.add(rank)
            if len(running) == layout.world_size:
                sys.stdout.write(f"{path}\n")
                sys.stdout.flush()
                sys.stdin.readline()  # the test looks around first
                if ending == "return":
                    raise StopIteration
                if ending == "raise":
                    raise ValueError("boom")

        with contextlib.suppress(StopIteration):
            launch(opened, [sys.executable, "-I", "-S", "-c", RANK], on_line=on_line)


if __name__ == "__main__":
    main(*sys.argv[1:])
