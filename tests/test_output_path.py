"""What a verb writes is looked at before its work."""

from __future__ import annotations

from pathlib import Path

import pytest

from thinwire.errors import ConfigError
from thinwire.output_path import prepare_output


def test_the_folder_is_made_and_nothing_left_in_it(tmp_path: Path) -> None:
    prepare_output(tmp_path / "new" / "folder" / "page.html")
    assert list((tmp_path / "new" / "folder").iterdir()) == []


def test_a_path_that_cannot_be_written_is_refused_beforehand(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    long = tmp_path / ("n" * 300)
    for path in (tmp_path, tmp_path / "file" / "page.html", Path("/proc/page.html"), long):
        with pytest.raises(ConfigError, match="cannot be written"):
            prepare_output(path)
    with pytest.raises(
        ConfigError, match=r"/dev/null: cannot be written \(is a device, not a file\)"
    ):
        prepare_output(Path("/dev/null"))


def test_a_file_where_a_folder_is_needed_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "lost").symlink_to(tmp_path / "nowhere")
    for blocking in ("file", "lost"):
        for below in ("page.html", "folder/page.html", "a/folder/page.html"):
            with pytest.raises(ConfigError) as raised:
                prepare_output(tmp_path / blocking / below)
            assert f"(file {tmp_path / blocking} is no folder)" in str(raised.value)


def test_an_input_is_not_overwritten_by_whatever_path_it_is_reached(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("read")
    (tmp_path / "link").symlink_to(text)
    (tmp_path / "hard").hardlink_to(text)
    missing = tmp_path / "missing"
    for name in ("text", "link", "hard"):
        with pytest.raises(ConfigError, match="would be overwritten"):
            prepare_output(tmp_path / name, inputs=[missing, text])
    prepare_output(tmp_path / "page.html", inputs=[missing, text])


def test_no_file_of_a_folder_that_is_read_is_overwritten(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    (texts / "below").mkdir(parents=True)
    (texts / "below" / "a.txt").write_text("read")
    (tmp_path / "beside.html").write_text("an older page")
    (tmp_path / "link").symlink_to(texts)
    for name in ("texts/below/a.txt", "link/below/a.txt"):
        with pytest.raises(ConfigError, match="would be overwritten"):
            prepare_output(tmp_path / name, inputs=[texts])
    # a new file in it takes nothing away, and a page beside it is replaced as before
    prepare_output(texts / "page.html", inputs=[texts])
    prepare_output(tmp_path / "beside.html", inputs=[texts])


def test_what_is_no_path_at_all_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("an older page")
    prepare_output(tmp_path / "page.html", inputs=[None, Path("zeropp," * 100), Path("gpt:1x1x1")])
    assert (tmp_path / "page.html").read_text() == "an older page"
