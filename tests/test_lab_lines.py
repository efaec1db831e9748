"""Lines out of bytes: nothing is lost, nothing is too long, nothing fails to decode."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from thinwire.lab.lines import MAX_LINE_BYTES, LineSplitter


def split(chunks: list[bytes]) -> list[str]:
    splitter = LineSplitter()
    return [line for chunk in chunks for line in splitter.feed(chunk)] + splitter.finish()


@given(st.lists(st.binary(max_size=50)))
def test_chunks_do_not_matter(chunks: list[bytes]) -> None:
    assert split(chunks) == split([b"".join(chunks)])


@given(st.lists(st.text(st.characters(blacklist_characters="\n\r", codec="utf-8"))))
def test_lines_of_text_come_through_unchanged(lines: list[str]) -> None:
    assert split(["".join(f"{line}\n" for line in lines).encode()]) == lines


@given(st.binary())
def test_any_bytes_decode(garbage: bytes) -> None:
    lines = split([garbage])
    assert len(lines) == garbage.count(b"\n") + (not garbage.endswith(b"\n") and garbage != b"")


def test_what_is_not_utf8_is_marked() -> None:
    assert split([b"a\xff\xfeb\n\x00\x80\n"]) == ["a\ufffd\ufffdb", "\x00\ufffd"]


def test_both_ends_of_lines() -> None:
    assert split([b"one\r\ntwo\n\nthree"]) == ["one", "two", "", "three"]


def test_a_huge_line_is_cut_and_says_so() -> None:
    chunks = [b"x" * 70_000] * 100  # 7,000,000 bytes, in chunks that do not divide the limit
    (line, after) = split([*chunks, b"\nnext\n"])
    assert line.startswith("x" * MAX_LINE_BYTES + " [")
    assert line.endswith(f"[... {7_000_000 - MAX_LINE_BYTES} bytes more]")
    assert after == "next"


def test_a_huge_line_is_not_kept_in_memory() -> None:
    splitter = LineSplitter()
    for _ in range(100):
        assert splitter.feed(b"x" * 70_000) == []
    assert len(splitter._kept) == MAX_LINE_BYTES
