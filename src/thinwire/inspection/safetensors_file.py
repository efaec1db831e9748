"""A safetensors file: a header of names, dtypes and shapes, then the numbers; no code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import safetensors
from torch import Tensor

from thinwire.errors import InputError
from thinwire.inspection.stored import StoredTensor, natural_order

__all__ = ["SafetensorsFile"]

UNKNOWN_DTYPE = re.compile(r"unknown variant `([^`]{1,40})`, expected")
DTYPE_NAMES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}


class SafetensorsFile:
    """A `Source` of one safetensors file; the header alone is read at first.

    Args:
        path: the file.
        label: what messages and tables call it.

    Raises:
        InputError: the header is broken, or promises more bytes than the file has.
    """

    def __init__(self, path: Path, label: str) -> None:
        self._path = path
        self.label = label
        self.files = (path,)
        with self._open() as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            self.tensors = tuple(
                StoredTensor(
                    name=name,
                    shape=tuple(slices[name].get_shape()),
                    dtype=DTYPE_NAMES.get(slices[name].get_dtype(), slices[name].get_dtype()),
                )
                for name in sorted(slices, key=natural_order)  # the header keeps no order
            )

    def read(self, name: str) -> Tensor:
        """See `Source.read`."""
        with self._open() as file:
            try:
                tensor: Tensor = file.get_tensor(name)
            except safetensors.SafetensorError as error:
                raise InputError(
                    f"{self.label}: {name} can no longer be read ({error}); do not write to the "
                    "file while it is inspected"
                ) from error
            return tensor

    def _open(self) -> Any:
        try:
            return safetensors.safe_open(self._path, framework="pt")
        except safetensors.SafetensorError as error:
            if found := UNKNOWN_DTYPE.search(str(error)):
                raise InputError(
                    f"{self.label}: holds a tensor of dtype {found[1]}, which the installed "
                    "safetensors does not know; install a later one, or save it in another dtype"
                ) from error
            raise InputError(
                f"{self.label}: not a whole safetensors file ({error}); copy or download it again"
            ) from error
        except OSError as error:
            raise InputError(f"{self.label}: cannot be read ({error})") from error
