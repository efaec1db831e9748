"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

__all__ = ["check_writable", "open_atomically", "write_text_atomically"]


@contextlib.contextmanager
def open_atomically(path: Path) -> Iterator[BinaryIO]:
    """A binary file that takes the place of ``path`` when the block ends without an error.

    The bytes go to a temporary file in the same folder, reach the disk, and are then renamed, so a
    reader sees the old content or the new, never a part.

    Raises:
        OSError: the folder cannot be written to; ``path`` is as before.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())  # mkstemp makes it private, an ordinary file is not
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def write_text_atomically(path: Path, text: str) -> None:
    """Write a UTF-8 text; see :func:`open_atomically`."""
    with open_atomically(path) as file:
        file.write(text.encode("utf-8"))


def check_writable(path: Path) -> None:
    """Raise OSError now if :func:`open_atomically` could not write ``path`` later."""
    if path.is_dir():
        raise IsADirectoryError(21, "is a folder", str(path))
    with tempfile.NamedTemporaryFile(prefix=f".{path.name}.", dir=path.parent):
        pass


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
