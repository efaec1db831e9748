"""A file of ``torch.save``: a checkpoint, a state dict, a dump of gradients.

It is read with ``weights_only=True``: tensors, numbers, texts and plain containers, and no code.
The file is mapped into memory, so that a tensor's bytes are read when it is its turn; only the
format that torch wrote before version 1.6 has to be read whole.
"""

from __future__ import annotations

import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from thinwire.errors import InputError
from thinwire.inspection.stored import StoredTensor

__all__ = ["TorchFile"]

STATES = "optimizer states"
ZIP_BEGIN = b"PK\x03\x04"
CUT_SHORT = "is cut short: it ends before its last tensor; copy or download it again"
ALONE = "save its tensors alone: torch.save(model.state_dict(), FILE)"
# What torch says, the surest first, and what it means. It reads pickles of protocol 2, and stops at
# the first instruction of a later one: FRAME, number 149, which protocol 4 brought.
REFUSALS = (
    (
        r"unsupported GLOBAL (\S+) whose module",
        "holds code that calls {0}, and code from a file is not run; do not load it in other ways "
        "either, and ask where it comes from for its tensors alone",
    ),
    (
        r"Unsupported global: GLOBAL (\S+)",
        "holds {0}, which only code could rebuild, and code from a file is not run; where you "
        f"trust it, {ALONE}",
    ),
    (
        r"unrecognized function|allowlisted",
        "holds what only code could rebuild, and code from a file is not run; where you trust it, "
        f"{ALONE}",
    ),
    (
        r"Unsupported operand 149",
        "is a pickle of protocol 4 or later, which only code could rebuild, and code from a file "
        f"is not run; where you trust it, {ALONE}",
    ),
    (
        r"Invalid magic number",
        f"is a pickle that torch.save did not write; where you trust it, {ALONE}",
    ),
    (
        r"DTensor",
        "holds DTensors, of which a rank has a part only; save whole tensors: "
        "{{name: tensor.full_tensor()}}",
    ),
)


class TorchFile:
    """A `Source` of one file of ``torch.save``, whatever plain containers its tensors lie in.

    Args:
        path: the file.
        label: what messages and tables call it.

    Raises:
        InputError: the file is broken, or holds what only code could rebuild.
    """

    def __init__(self, path: Path, label: str) -> None:
        self.label = label
        self.files = (path,)
        self._found: dict[str, Tensor] = {}
        stored = []
        seen: dict[tuple[object, ...], str] = {}
        for name, tensor, is_state in _walk(_load(path, label)):
            left_out = STATES if is_state else _obstacle(tensor)
            if left_out is None and tensor.numel():
                first = seen.setdefault(_identity(tensor), name)
                left_out = None if first == name else f"the same numbers as {first}"
            if name in self._found:
                raise InputError(
                    f"{label}: two tensors are called {name!r} once the keys on the way to them "
                    "are joined by dots; save them in two files"
                )
            self._found[name] = tensor
            stored.append(
                StoredTensor(
                    name=name,
                    shape=tuple(tensor.shape),
                    dtype=str(tensor.dtype).removeprefix("torch."),
                    left_out=left_out,
                )
            )
        self.tensors = tuple(stored)

    def read(self, name: str) -> Tensor:
        """See `Source.read`."""
        return self._found[name]


def _load(path: Path, label: str) -> object:
    try:
        is_zip = zipfile.is_zipfile(path)
        if not is_zip and _begins_as_zip(path):  # its table of contents stands at the end
            raise InputError(f"{label}: {CUT_SHORT}")
        with warnings.catch_warnings():
            # that the pickle has another protocol than torch's own: it is read, or it is not
            warnings.simplefilter("ignore", UserWarning)
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{label}: cannot be read ({error.strerror or error})") from error
    except Exception as error:  # a broken file trips torch up in any way
        reason = CUT_SHORT if _ends_too_early(path, error) else _explain(error)
        raise InputError(f"{label}: {reason}") from error


def _begins_as_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(ZIP_BEGIN)) == ZIP_BEGIN


def _ends_too_early(path: Path, error: Exception) -> bool:
    """Whether a file of the old format was cut: torch ran into its end, or it ends in a name.

    Of a name that was cut torch says that it is none that it knows, as if the file held code.
    """
    if isinstance(error, EOFError) or "unexpected EOF" in str(error):
        return True
    match = re.search(r"(?:unsupported|Unsupported global:) GLOBAL (\S+)", str(error))
    if match is None:
        return False
    # In the file a line break stands between the module and the name, and another one behind the
    # name; torch takes the last character of a line for one.
    called = f"c{match[1]}".encode()
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - len(called) - 1))
        end = file.read().replace(b"\n", b".")
    return match[1].endswith(".") or end.endswith(called) or end[:-1].endswith(called)


def _explain(error: Exception) -> str:
    """Why torch would not read a file, and what to do: its messages are all that tells."""
    message = str(error)
    for pattern, found in REFUSALS:
        if match := re.search(pattern, message):
            return found.format(*match.groups())
    *_, detail = message.split("WeightsUnpickler error: ")  # before it torch tells how to run code
    reason = next(iter(detail.strip().splitlines()), type(error).__name__).split(". ")[0]
    return (
        f"not a whole file of torch.save ({reason}); copy or download it again, or save a state "
        "dict again"
    )


def _walk(root: object) -> Iterator[tuple[str, Tensor, bool]]:
    """Every tensor, in order: its name, itself, and whether it belongs to an optimizer.

    A container is entered once, so that a file cannot make this go round in circles.
    """
    entered: set[int] = set()
    waiting: list[tuple[str, object, bool]] = [("", root, False)]
    while waiting:
        name, node, is_state = waiting.pop()
        if isinstance(node, Tensor):
            yield name or "tensor", node, is_state
        elif isinstance(node, (Mapping, list, tuple)) and id(node) not in entered:
            entered.add(id(node))
            is_state = is_state or _is_optimizer(node)
            pairs = node.items() if isinstance(node, Mapping) else enumerate(node)
            children = [
                (f"{name}.{key}" if name else str(key), child, is_state) for key, child in pairs
            ]
            waiting.extend(reversed(children))


def _is_optimizer(node: object) -> bool:
    """Whether this is what ``torch.optim.Optimizer.state_dict()`` returns."""
    return isinstance(node, Mapping) and "state" in node and "param_groups" in node


def _obstacle(tensor: Tensor) -> str | None:
    if type(tensor) not in (Tensor, nn.Parameter):
        return f"{type(tensor).__name__} (plain tensors are encoded)"
    if tensor.is_meta:
        return "saved without its numbers"
    if tensor.layout != torch.strided:
        return f"{tensor.layout} (dense tensors are encoded)".removeprefix("torch.")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        # a few bytes can stand for more elements than there is memory
        return "a view that repeats what is stored (a contiguous copy of it is encoded)"
    return None


def _identity(tensor: Tensor) -> tuple[object, ...]:
    """Equal for two names of the same numbers, as tied weights have them."""
    return (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
