"""Where a verb will write its page or file, looked at before the work and not after it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from thinwire.atomic_file import check_writable
from thinwire.errors import ConfigError
from thinwire.table_file import file_label

__all__ = ["prepare_output"]


def prepare_output(path: Path, *, inputs: Iterable[Path | None] = ()) -> None:
    """Refuse now a path that must not or could not be written after the work; make its folder.

    Args:
        path: the file to be written.
        inputs: files that are read, and folders whose files are; whatever they are called, none may
            be overwritten. What was not given or is not there is passed over.

    Raises:
        ConfigError: the path is one of the inputs, or a file in one of the folders; its folder
            cannot be made or written to; or it is there and is no file.
    """
    label = file_label("output", path)
    if os.path.isfile(path) and any(_is_read(path, source) for source in inputs if source):
        raise ConfigError(f"{label}: is read here, and would be overwritten; give another file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        check_writable(path)
    except OSError as error:
        raise ConfigError(
            f"{label}: cannot be written ({_reason(path, error)}); give a file in a folder that "
            "you may write to"
        ) from error


def _reason(path: Path, error: OSError) -> str:
    """Why a path cannot be written, in words of its own where a file stands for a folder."""
    if isinstance(error, (FileExistsError, NotADirectoryError)):
        nearest = next(folder for folder in path.parents if os.path.lexists(folder))
        if not os.path.isdir(nearest):
            return f"{file_label('file', nearest)} is no folder"
    return error.strerror or "no reason is known"


def _is_read(path: Path, source: Path) -> bool:
    # os.path, not Path: what may be a name of a recipe or a model is no path for sure, and too long
    if os.path.isdir(source):
        return path.resolve().is_relative_to(source.resolve())
    return os.path.exists(source) and os.path.samefile(path, source)
