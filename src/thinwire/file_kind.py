"""What lies at a path: a regular file, or something that is read and written in other ways."""

from __future__ import annotations

import stat

__all__ = ["describe_kind"]

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
