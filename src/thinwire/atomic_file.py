"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from thinwire.file_kind import describe_kind

__all__ = ["check_writable", "open_atomically", "write_text_atomically"]


@contextlib.contextmanager
def open_atomically(path: Path) -> Iterator[BinaryIO]:
    """A binary file that takes the place of ``path`` when the block ends without an error.

    The bytes go to a temporary file in the same folder, reach the disk, and are then renamed, so a
    reader sees the old content or the new, never a part. Where ``path`` is a link, the file that it
    names is replaced, and the link stays.

    Raises:
        OSError: the folder cannot be written to, or ``path`` is there and is no regular file; it
            is as before.
    """
    target = _target(path)
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())  # mkstemp makes it private, an ordinary file is not
        os.replace(name, target)
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
    target = _target(path)
    with tempfile.NamedTemporaryFile(prefix=f".{target.name}.", dir=target.parent):
        pass


def _target(path: Path) -> Path:
    """The file that a write to ``path`` is to replace, behind all links; it need not be there.

    A device, a pipe or a socket would be replaced for every program, which nobody means.
    """
    try:
        mode = os.stat(path).st_mode  # of what is behind /dev/stdout too, which has no other path
    except FileNotFoundError:
        mode = stat.S_IFREG
    if not stat.S_ISREG(mode):
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(number, f"is {describe_kind(mode)}, not a file", str(path))
    return Path(os.path.realpath(path))


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
