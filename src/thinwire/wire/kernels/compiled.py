"""Compile loops with Numba, and keep the machine code between runs where that is possible.

    note [cache]
    Numba keys its cache by the file of the function that is called from Python. A change in another
    file, from which that function takes a loop, would go unnoticed: old machine code would run
    beside new sources. Here the key is the digest of every file of this package.
    A directory that cannot be written, or a full disk, costs compile time and nothing else.

No loop is compiled with fast-math: NaN must survive, and the reference must be met bit for bit.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    InTreeCacheLocator,
    UserProvidedCacheLocator,
    UserWideCacheLocator,
)

__all__ = ["entry", "loop"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

# nogil: a kernel runs beside the thread that computes. error_model: x / 0 is Inf, as in torch.
_FLAGS = {"nogil": True, "error_model": "numpy"}


@cache
def _source_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


class _WholePackage:
    """A cache entry is fresh while no file of this package has changed."""

    def get_source_stamp(self) -> str:
        return _source_digest()


class _UserProvided(_WholePackage, UserProvidedCacheLocator):  # type: ignore[misc]
    pass


class _InTree(_WholePackage, InTreeCacheLocator):  # type: ignore[misc]
    pass


class _UserWide(_WholePackage, UserWideCacheLocator):  # type: ignore[misc]
    pass


class _CacheImpl(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = [_UserProvided, _InTree, _UserWide]  # noqa: RUF012  (Numba's own attribute)


class _Cache(FunctionCache):  # type: ignore[misc]
    _impl_class = _CacheImpl

    def save_overload(self, sig: Any, data: Any) -> None:
        with contextlib.suppress(OSError):
            super().save_overload(sig, data)


def loop(function: _Function) -> _Function:
    """Compile a loop that other loops and entries use."""
    compiled: _Function = numba.njit(**_FLAGS)(function)
    return compiled


def entry(function: _Function) -> _Function:
    """Compile a function that Python calls; its machine code is cached."""
    compiled: Any = numba.njit(**_FLAGS)(function)
    with contextlib.suppress(RuntimeError):  # no directory can be written: compile in each process
        compiled._cache = _Cache(function)
    result: _Function = compiled
    return result
