"""From a path to its tensors: what a file is shows in its first bytes, whatever its name."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from thinwire.errors import InputError
from thinwire.file_kind import describe_kind
from thinwire.inspection.safetensors_file import SafetensorsFile
from thinwire.inspection.shards import open_index
from thinwire.inspection.stored import Source
from thinwire.inspection.torch_file import TorchFile

__all__ = ["KINDS", "open_source"]

KINDS = "a safetensors file, a file of torch.save, a *.index.json or a folder that holds one"
INDEX = ".index.json"
# in the order in which Hugging Face libraries look for them
FOLDER_PATTERNS = (
    f"*.safetensors{INDEX}",
    "*.safetensors",
    f"*.bin{INDEX}",
    "*.bin",
    "*.pt",
    "*.pth",
)
# one of Hugging Face's folders may hold these beside the model, and they hold no model
NO_MODEL = ("training_args.bin", "optimizer.pt", "scheduler.pt", "scaler.pt")
MAX_HEADER_BYTES = 100_000_000  # safetensors' own limit
FIRST_BYTES = 64
FIRST_CHARACTERS = 60  # of a path that is too long to be shown


def open_source(path: Path) -> Source:
    """The tensors of a file, of an index with its shards, or of a folder that holds either.

    Raises:
        InputError: there is nothing, nothing known, or more than one choice.
    """
    label = str(path)
    try:
        label.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{label!a}: its name is no text in UTF-8, by which files are opened; rename it"
        ) from error
    if stat.S_ISDIR(_mode_of(path, label)):
        path = _model_in(path)
    if path.name.endswith(INDEX):
        _check_regular(path, label)
        return open_index(path, label, _open_file)
    return _open_file(path, label)


def _model_in(folder: Path) -> Path:
    """The one checkpoint of a folder."""
    for pattern in FOLDER_PATTERNS:
        found = sorted(file for file in folder.glob(pattern) if file.name not in NO_MODEL)
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(file.name for file in found[:4])
            raise InputError(
                f"{folder}: holds {len(found)} files that could be meant ({names}); name one or "
                "several of them"
            )
    if (folder / ".metadata").is_file():
        raise InputError(
            f"{folder}: is a checkpoint of torch.distributed.checkpoint, which is sharded by rank; "
            "join it first: python -m torch.distributed.checkpoint.format_utils dcp_to_torch "
            f"{folder} FILE.pt"
        )
    raise InputError(f"{folder}: holds no checkpoint ({', '.join(FOLDER_PATTERNS)}); give {KINDS}")


def _mode_of(path: Path, label: str) -> int:
    """``st_mode`` of what is at a path, behind all links."""
    try:
        return os.stat(path).st_mode
    except (OSError, ValueError) as error:  # a path with a null character is a ValueError
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            raise InputError(
                f"{label[:FIRST_CHARACTERS]}...: is too long for a path; give a shorter one, "
                "from a folder further in"
            ) from error
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{label}: cannot be read ({reason}); give {KINDS}") from error


def _check_regular(path: Path, label: str) -> None:
    """Refuse what is no file: to open a pipe waits for a writer, and no tensor could be read twice.

    Raises:
        InputError: there is nothing, or something else.
    """
    mode = _mode_of(path, label)
    if not stat.S_ISREG(mode):
        raise InputError(
            f"{label}: is {describe_kind(mode)}, not a file, and tensors are read at their places "
            "in one; copy it into a file first"
        )


def _open_file(path: Path, label: str) -> Source:
    _check_regular(path, label)
    try:
        with path.open("rb") as file:
            start = file.read(FIRST_BYTES)
    except OSError as error:
        raise InputError(
            f"{label}: cannot be read ({error.strerror or error}); give {KINDS}"
        ) from error
    if not start:
        raise InputError(f"{label}: is empty; copy or download it again, or give {KINDS}")
    if start.startswith(b"version https://git-lfs"):
        raise InputError(
            f"{label}: is a pointer of Git LFS, not the file it stands for; run git lfs pull"
        )
    if _is_safetensors(start):
        return SafetensorsFile(path, label)
    if start.startswith((b"PK\x03\x04", b"\x80")):  # a zip archive, or a bare pickle
        if path.name.endswith(".safetensors"):  # torch.load would go by that
            raise InputError(f"{label}: is no safetensors file, but one of torch.save; rename it")
        return TorchFile(path, label)
    raise InputError(f"{label}: of a kind that is not known here; give {KINDS}")


def _is_safetensors(start: bytes) -> bool:
    """Eight bytes that count the header's, then the header, which is a JSON object."""
    return start[8:9] == b"{" and int.from_bytes(start[:8], "little") <= MAX_HEADER_BYTES
