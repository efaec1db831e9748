"""A file is there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from thinwire.atomic_file import check_writable, open_atomically, write_text_atomically


def test_a_text_replaces_the_old_one_and_leaves_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    target.write_text("old")
    write_text_atomically(target, "new: ä")
    assert target.read_text(encoding="utf-8") == "new: ä"
    assert list(tmp_path.iterdir()) == [target]


def test_an_error_keeps_the_old_content_and_leaves_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    target.write_text("old")

    def be_interrupted() -> None:
        with open_atomically(target) as file:
            file.write(b"half of")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        be_interrupted()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_others_may_read_the_file_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_text_atomically(tmp_path / "page.html", "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "page.html").stat().st_mode) == 0o640


@pytest.mark.parametrize("name", ["missing/page.html", "."])
def test_a_path_that_cannot_be_written_is_told_beforehand(tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError):
        check_writable(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_the_check_leaves_an_existing_file_as_it_is(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    target.write_text("old")
    check_writable(target)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def bind_socket(path: Path) -> None:
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as bound:
        bound.bind(str(path))  # stays in the folder when it is closed


SPECIAL: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a socket": bind_socket,
    "a folder": Path.mkdir,
    "a device": lambda path: path.symlink_to("/dev/null"),
}


@pytest.mark.parametrize("behind_a_link", [False, True])
@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_no_file_is_refused_and_stays(
    tmp_path: Path, kind: str, behind_a_link: bool
) -> None:
    """Renaming a page to /dev/null once took it away from every program."""
    made = tmp_path / "made"
    SPECIAL[kind](made)
    path = made
    if behind_a_link:
        path = tmp_path / "link"
        path.symlink_to(made)
    before = made.stat()
    for write in (check_writable, lambda path: write_text_atomically(path, "text")):
        with pytest.raises(OSError, match=f"is {kind}, not a file"):
            write(path)
    assert os.path.samestat(made.stat(), before)
    assert len(list(tmp_path.iterdir())) == 1 + behind_a_link


@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize("num_links", [1, 2])
def test_a_link_stays_and_what_it_names_is_written(
    tmp_path: Path, num_links: int, is_there: bool
) -> None:
    target = tmp_path / "elsewhere" / "page.html"
    target.parent.mkdir()
    if is_there:
        target.write_text("old")
    named = target
    for number in range(num_links):
        link = tmp_path / f"link{number}"
        link.symlink_to(os.path.relpath(named, tmp_path))  # counts from the link's own folder
        named = link
    check_writable(named)
    write_text_atomically(named, "new")
    assert named.is_symlink()
    assert target.read_text() == "new"
    assert list(target.parent.iterdir()) == [target]


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "link"
    path.symlink_to(path)
    with pytest.raises(OSError, match="symbolic links"):
        check_writable(path)
