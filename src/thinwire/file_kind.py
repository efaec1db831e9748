"""What lies at a path: a regular file, or something that is read and written in other ways."""

from __future__ import annotations

import errno
import stat
from pathlib import Path

__all__ = ["describe_kind", "read_file_text"]

KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def describe_kind(mode: int) -> str:
    """What something is, for people.

    Args:
        mode: ``st_mode`` of an ``os.stat_result``.
    """
    return KINDS.get(stat.S_IFMT(mode), "of an unknown kind")


def read_file_text(path: Path) -> str:
    """The UTF-8 text of a regular file; of a pipe or a device a read might never end.

    Raises:
        OSError: it cannot be read, or is no regular file.
        UnicodeDecodeError: it is no UTF-8.
    """
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # a folder's own error is as good
        raise OSError(errno.EINVAL, f"is {describe_kind(mode)}, not a file", str(path))
    return path.read_text(encoding="utf-8")
