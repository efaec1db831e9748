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
        with warnings.catch_warnings():
            # that the pickle has another protocol than torch's own: it is read, or it is not
            warnings.simplefilter("ignore", UserWarning)
            return torch.load(
                path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
            )
    except OSError as error:
        raise InputError(f"{label}: cannot be read ({error.strerror or error})") from error
    except Exception as error:  # a broken file trips torch up in any way
        raise InputError(f"{label}: {_explain(error)}") from error


def _explain(error: Exception) -> str:
    """Why torch would not read a file, and what to do: its messages are all that tells."""
    message = str(error)
    for pattern, found in REFUSALS:
        if match := re.search(pattern, message):
            return found.format(*match.groups())
    *_, detail = message.split("WeightsUnpickler error: ")  # before it torch tells how to run code
    reason = next(iter(detail.strip().splitlines()), type(error).__name__).split(". ")[0]
    return f"not a whole file of torch.save ({reason}); copy it again, or save a state dict again"


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
    return None


def _identity(tensor: Tensor) -> tuple[object, ...]:
    """Equal for two names of the same numbers, as tied weights have them."""
    return (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
