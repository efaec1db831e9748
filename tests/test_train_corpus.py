"""Text from files, folders and the standard library, and what is not a text."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from thinwire.errors import InputError
from thinwire.train.corpus import Corpus, default_corpus, open_corpus


def test_a_file_is_used_in_place(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes("grün\r\n".encode() * 100)
    corpus = open_corpus(text, scratch=tmp_path)
    assert corpus.path == text
    assert corpus.num_bytes == 700


def test_a_folder_is_joined_in_sorted_order_without_what_is_no_text(tmp_path: Path) -> None:
    folder, scratch = tmp_path / "folder", tmp_path / "scratch"
    (folder / "b").mkdir(parents=True)
    scratch.mkdir()
    (folder / "c.txt").write_bytes(b"third")
    (folder / "a.txt").write_bytes(b"first\n\n")
    (folder / "b" / "x.txt").write_bytes(b"second\n")
    (folder / "picture.png").write_bytes(b"\x89PNG\0\0\0\0")
    (folder / "empty").write_bytes(b"")
    (folder / ".hidden").write_bytes(b"hidden")
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_bytes(b"hidden")
    corpus = open_corpus(folder, scratch=scratch)
    assert corpus.path.read_bytes() == b"first\nsecond\nthird\n"
    assert corpus.num_bytes == len(b"first\nsecond\nthird\n")
    assert "3 files" in corpus.source


def test_the_last_twentieth_is_held_out() -> None:
    corpus = Corpus(path=Path("text"), num_bytes=1000, source="text")
    assert corpus.num_train == 950


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"\0" * 1000, "binary"),
        (b"\x7fELF" + b"\0\1" * 500, "binary"),
    ],
)
def test_a_file_that_is_no_text_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(InputError, match=said):
        open_corpus(tmp_path / "file", scratch=tmp_path)


def test_one_nul_does_not_make_a_text_binary(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text " * 100 + b"\0")
    assert open_corpus(tmp_path / "file", scratch=tmp_path).num_bytes == 501


def test_a_missing_file_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        open_corpus(tmp_path / "missing", scratch=tmp_path)
    with pytest.raises(InputError, match="no text file"):
        open_corpus(tmp_path, scratch=tmp_path)


def test_what_is_neither_file_nor_folder_is_refused(tmp_path: Path) -> None:
    """A pipe would be waited for without end."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a file"):
        open_corpus(tmp_path / "pipe", scratch=tmp_path)


def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    """The kernel refuses to read this one from its start, even to root."""
    with pytest.raises(InputError, match="cannot be read"):
        open_corpus(Path("/proc/self/mem"), scratch=tmp_path)


def test_a_short_text_is_refused_with_the_length_that_would_do() -> None:
    seq_len = 128
    with pytest.raises(InputError, match="too short") as raised:
        Corpus(path=Path("text"), num_bytes=1000, source="text").check_length(seq_len)
    needed = int(str(raised.value).split("give ")[1].split(" bytes")[0])
    Corpus(path=Path("text"), num_bytes=needed, source="text").check_length(seq_len)


def test_the_standard_library_is_joined_once_and_holds_no_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    corpus = default_corpus()
    content = corpus.path.read_bytes()
    assert corpus.path.is_relative_to(tmp_path / "thinwire")
    assert len(content) == corpus.num_bytes
    # the library of every supported version is about 10 MB; its tests alone would add twice that
    assert 5e6 < corpus.num_bytes < 2e7
    assert b"class TestCase" in content  # unittest is library, not test
    assert b"class DictTest(unittest.TestCase)" not in content
    written = corpus.path.stat().st_mtime_ns
    assert default_corpus() == corpus
    assert corpus.path.stat().st_mtime_ns == written


def test_a_cache_that_cannot_be_made_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(InputError, match="XDG_CACHE_HOME"):
        default_corpus()


def test_random_bytes_are_no_text_even_without_many_nuls(tmp_path: Path) -> None:
    path = tmp_path / "noise"
    path.write_bytes(random.Random(0).randbytes(100_000))
    with pytest.raises(InputError, match="binary"):
        open_corpus(path, scratch=tmp_path)


def test_text_in_another_alphabet_is_text(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("\t你好, مرحبا, שלום\r\n" * 400, encoding="utf-8")
    assert open_corpus(path, scratch=tmp_path).num_bytes == path.stat().st_size
