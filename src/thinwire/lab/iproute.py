"""The programs `ip` and `tc`, run inside a namespace with a batch of commands."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from thinwire.errors import LabError
from thinwire.lab.namespace import Namespace

__all__ = ["find_program", "run_batch"]

# Where distributions keep them; a user's PATH often lacks these.
_SYSTEM_FOLDERS = "/usr/sbin:/sbin:/usr/bin:/bin"

# A batch takes milliseconds; a program that hangs must not hang the lab.
_TIMEOUT_S = 30.0


def find_program(name: str) -> str | None:
    """Return the path of `ip` or `tc`, or None when it is not installed."""
    return shutil.which(name) or shutil.which(name, path=_SYSTEM_FOLDERS)


def run_batch(namespace: Namespace, program: str, commands: Sequence[str]) -> None:
    """Run the commands, in order, by one call of `program` in the namespace.

    Raises:
        LabError: the program is missing, or refused a command; it says which and why.
    """
    path = find_program(program)
    if path is None:
        raise LabError(f"the program {program!r} is not found; install iproute2")
    script = "".join(f"{command}\n" for command in commands)
    try:
        done = namespace.run(
            lambda: subprocess.run(
                [path, "-batch", "-"],
                input=script,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                env={**os.environ, "LC_ALL": "C"},
                check=False,
            )
        )
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{program} did not end within {_TIMEOUT_S:.0f} s") from error
    if done.returncode != 0:
        raise LabError(f"{program} refused {_refused(done.stderr, commands)}")


def _refused(stderr: str, commands: Sequence[str]) -> str:
    """Name the refused command: `ip -batch` ends with the line `Command failed -:LINE`."""
    lines = stderr.split("\n")
    words = " ".join(line for line in lines if line and not line.startswith("Command failed"))
    for line in lines:
        number = line.removeprefix("Command failed -:")
        if number != line and number.isdigit():
            return f"'{commands[int(number) - 1]}': {words}"
    return f"its commands: {words}"
