"""A file is there whole or not at all."""

from __future__ import annotations

import os
import stat
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
