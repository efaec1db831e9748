"""Text as bytes: from a file, from a folder, or the standard library's own source.

A corpus is one file of bytes that every rank maps into memory, so that a large text is held once
per machine. The default needs no download: the Python source that the running interpreter came
with, about 10 MB of real text, the same on every machine with the same version.
"""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterable, Set
from dataclasses import dataclass
from pathlib import Path

from thinwire.atomic_file import open_atomically
from thinwire.errors import InputError

__all__ = ["HELD_OUT", "Corpus", "default_corpus", "open_corpus"]

HELD_OUT = 0.05  # the last part of the text, never trained on
SNIFFED_BYTES = 64 * 1024
# Text holds tabs and ends of lines, hardly another control character; random bytes hold 11 %. A
# stray one is no reason to refuse a file.
MAX_CONTROL_SHARE = 0.01
CONTROL_BYTES = bytes(sorted({*range(0x20), 0x7F} - set(b"\t\n\r\f\v\x1b")))
LIBRARY_EXCLUDES = frozenset({"test", "tests", "idle_test", "site-packages", "__pycache__"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """A text in one file: its first part is trained on, its last 5 % are held out.

    Attributes:
        path: the file of bytes.
        num_bytes: its size, which is also the number of tokens.
        source: where the text came from, in words for a report.
    """

    path: Path
    num_bytes: int
    source: str

    @property
    def num_train(self) -> int:
        """Tokens before the held-out part."""
        return self.num_bytes - int(self.num_bytes * HELD_OUT)

    def check_length(self, seq_len: int) -> None:
        """Raise InputError unless each part holds at least one sequence and its next token."""
        shortest = min(self.num_train, self.num_bytes - self.num_train)
        if shortest < seq_len + 1:
            needed = int((seq_len + 2) / HELD_OUT)
            raise InputError(
                f"text {self.source}: {self.num_bytes} bytes are too short to train on sequences "
                f"of {seq_len} and hold out 5 %; give {needed} bytes or more, or a shorter --seq"
            )


def open_corpus(path: Path, *, scratch: Path) -> Corpus:
    """The text of a file, or of all text files in a folder.

    Args:
        path: a file, or a folder that is read recursively in sorted order; in a folder, binary and
            empty files, and those whose name begins with a dot, are passed over.
        scratch: an existing folder for the joined text of a folder.

    Raises:
        InputError: nothing there, unreadable, empty, or binary.
    """
    if path.is_dir():
        files = [file for file in _files_below(path) if _is_text(file)]
        if not files:
            raise InputError(f"text {path}: no text file in this folder")
        return _join(files, scratch / "corpus.txt", source=f"{path} ({len(files)} files)")
    if path.exists() and not path.is_file():
        raise InputError(f"text {path}: not a file; give a file of text, or a folder of them")
    if not _is_text(path):
        what = "empty" if path.stat().st_size == 0 else "a binary file, not a text"
        raise InputError(f"text {path}: {what}")
    return Corpus(path=path.resolve(), num_bytes=path.stat().st_size, source=str(path))


def default_corpus() -> Corpus:
    """The standard library's own source, without its tests, joined once in the user's cache.

    Raises:
        InputError: the library's source or the cache folder is not accessible.
    """
    library = Path(sysconfig.get_paths()["stdlib"])
    below = _files_below(library, excluded=LIBRARY_EXCLUDES)
    files = [file for file in below if file.suffix == ".py"]
    if not files:
        raise InputError(f"text {library}: this Python has no library source; give --data PATH")
    version = ".".join(str(part) for part in sys.version_info[:3])
    # the same version in another place may be patched: the place is part of the name
    place = hashlib.sha256(os.fsencode(library)).hexdigest()[:8]
    cached = _cache_folder() / f"python-{version}-{place}.txt"
    source = f"source of the Python {version} standard library"
    if cached.is_file() and cached.stat().st_size > 0:
        return Corpus(path=cached, num_bytes=cached.stat().st_size, source=source)
    return _join(files, cached, source=source)


def _cache_folder() -> Path:
    """Where the user's programs keep what they can make again (XDG base directories)."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(root) if os.path.isabs(root) else Path.home() / ".cache"
    folder = base / "thinwire"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cache {folder}: cannot be made ({error.strerror}); set XDG_CACHE_HOME to a folder "
            "that you may write to, or give --data PATH"
        ) from error
    return folder


def _files_below(folder: Path, *, excluded: Set[str] = frozenset()) -> list[Path]:
    """All visible files below a folder, sorted, so that the text is the same on every machine.

    Folders whose name is ``excluded`` are not entered.
    """
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name[0] != "." and name not in excluded]
        found += [Path(parent, name) for name in names if not name.startswith(".")]
    return sorted(file for file in found if file.is_file())


def _is_text(path: Path) -> bool:
    """Whether a file's beginning is neither empty nor binary."""
    try:
        with path.open("rb") as file:
            head = file.read(SNIFFED_BYTES)
    except OSError as error:
        raise InputError(f"text {path}: cannot be read ({error.strerror})") from error
    num_controls = len(head) - len(head.translate(None, delete=CONTROL_BYTES))
    return len(head) > 0 and num_controls <= MAX_CONTROL_SHARE * len(head)


def _join(files: Iterable[Path], target: Path, *, source: str) -> Corpus:
    """Write the files one after another, each ended by a newline."""
    try:
        with open_atomically(target) as joined:
            for file in files:
                joined.write(file.read_bytes().rstrip(b"\n") + b"\n")
    except OSError as error:
        culprit = error.filename or target
        raise InputError(f"text {culprit}: cannot be read or joined ({error.strerror})") from error
    return Corpus(path=target, num_bytes=target.stat().st_size, source=source)
