"""Tensors that lie in a file, listed before any is read."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

__all__ = ["Source", "StoredTensor", "natural_order"]

# What can be encoded. No codec takes float64; its values travel as float32.
ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """One tensor of a file, not read yet.

    Attributes:
        name: its path in the file, parts joined by dots.
        shape: its shape.
        dtype: as torch calls it, without ``torch.``; as the file calls it where torch has no word.
        left_out: why it is not inspected whatever its dtype, or ``None``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    left_out: str | None = None

    @property
    def numel(self) -> int:
        """Its number of elements."""
        return math.prod(self.shape)

    @property
    def stored_bytes(self) -> int:
        """Its bytes in the file; for tensors that can be encoded."""
        return self.numel * ITEM_BYTES[self.dtype]

    @property
    def obstacle(self) -> str | None:
        """Why it cannot be inspected, in words; ``None`` if it can."""
        if self.left_out is not None:
            return self.left_out
        if self.dtype not in ITEM_BYTES:
            return f"{self.dtype} (floating point of 16 to 64 bits is encoded)"
        return None if self.numel else "holds no elements"


class Source(Protocol):
    """A file, or several that belong together, whose tensors are read one at a time."""

    @property
    def label(self) -> str:
        """What the user called it."""
        ...

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that it is read from."""
        ...

    @property
    def tensors(self) -> tuple[StoredTensor, ...]:
        """All tensors, in the order of the model as far as the file tells it."""
        ...

    def read(self, name: str) -> Tensor:
        """One tensor, on the CPU, in the dtype and shape of the file.

        Raises:
            InputError: the file has changed since it was opened, or cannot be read any more.
        """
        ...


def natural_order(name: str) -> tuple[tuple[int, str], ...]:
    """A key that sorts names as people count: ``layers.2`` before ``layers.10``."""
    parts = re.split(r"([0-9]+)", name)
    # by length first: numbers of any length compare without being converted
    return tuple((len(part.lstrip("0")) * (index % 2), part) for index, part in enumerate(parts))
