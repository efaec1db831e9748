"""Compile loops with Numba, and keep the machine code between runs where that is possible.

    note [cache]
    Numba keys its cache by the file of the function that is called from Python. A change in another
    file, from which that function takes a loop or a constant, would go unnoticed: old machine code
    would run beside new sources. Here the key is the digest of every file that loops come from.
    A directory that cannot be written, a full disk, or a file that was cut short costs compile time
    and nothing else. What has to be compiled is logged, for it takes seconds.

    note [names]
    Machine code finds the loops that it calls by their names, and where cached files of two
    processes hold one of the same name the linker takes either. Numba's names are those of the
    functions and a count of what the process had compiled before, which another process counts
    otherwise. So every function has a name that no other one has; two closures from the same lines
    would be exchanged for one another, and wrong bytes sent without a word.

No loop is compiled with fast-math: NaN must survive, and the reference must be met bit for bit.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import weakref
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    InTreeCacheLocator,
    UserProvidedCacheLocator,
    UserWideCacheLocator,
)

__all__ = ["element", "entry", "loop", "tile_loop"]

_log = logging.getLogger(__name__)

# All that is compiled and in use, by name: see note [names].
_named: weakref.WeakValueDictionary[str, Callable[..., Any]] = weakref.WeakValueDictionary()

_Function = TypeVar("_Function", bound=Callable[..., Any])


@cache
def _source_digest() -> str:
    digest = hashlib.sha256()
    package = Path(__file__).parents[2]
    constants = [package / "families.py", package / "layouts.py"]
    for path in sorted([*constants, *package.glob("wire/**/*.py")]):
        name = path.relative_to(package).as_posix()
        digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


class _WholePackage:
    """A cache entry is fresh while no file that loops come from has changed."""

    def get_source_stamp(self) -> str:
        return _source_digest()


class _UserProvided(_WholePackage, UserProvidedCacheLocator):
    pass


class _InTree(_WholePackage, InTreeCacheLocator):
    pass


class _UserWide(_WholePackage, UserWideCacheLocator):
    pass


class _CacheImpl(CompileResultCacheImpl):
    _locator_classes = [_UserProvided, _InTree, _UserWide]  # noqa: RUF012  (Numba's own attribute)


class _Cache(FunctionCache):
    _impl_class = _CacheImpl

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        # Numba adds what a function closes over: other loops, whose pickles differ from process to
        # process. Their sources are in the stamp, and `entry` tells functions apart by name.
        return sig, codegen.magic_tuple()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            found = super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        except Exception:  # a damaged file trips the unpickler up in any way
            _log.info("the cache of %s is damaged, and begins afresh", self._impl.filename_base)
            found = None
            with contextlib.suppress(OSError):
                self.flush()  # type: ignore[no-untyped-call]
        if found is None:
            _log.info("compiling %s, once on this machine", self._impl.filename_base)
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        with contextlib.suppress(OSError):
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]


def loop(function: _Function, *, name: str | None = None) -> _Function:
    """Compile a loop that other loops and entries use.

    Args:
        function: what to compile.
        name: of one that closes over others than its likes from the same lines do.
    """
    return cast(_Function, _compile(function, name=name))


def element(function: _Function, *, name: str | None = None) -> _Function:
    """Compile what is done to one element, or block: it becomes part of every loop that uses it.

    A loop with a call in it is no vector code, and the compiler inlines short functions only.

    Args:
        function: what to compile.
        name: as for `loop`.
    """
    return cast(_Function, _compile(function, name=name, forceinline=True))


def tile_loop(function: _Function) -> _Function:
    """Compile what is done to one tile: it becomes part of the walk over all of them.

    A walk hands over so many numbers that a call would take a tenth of the time of a small tile.
    """
    return cast(_Function, _compile(function, forceinline=True))


def entry(function: _Function, *, name: str | None = None) -> _Function:
    """Compile a function that Python calls; its machine code is cached.

    Args:
        function: what to compile. It may close over loops.
        name: of one that closes over others than its likes from the same lines do.
    """
    compiled = _compile(function, name=name)
    with contextlib.suppress(RuntimeError):  # no directory can be written: compile in each process
        compiled._cache = _Cache(function)  # type: ignore[no-untyped-call]
    return cast(_Function, compiled)


def _compile(
    function: Callable[..., Any], *, name: str | None = None, forceinline: bool = False
) -> Any:
    if name is not None:
        function.__qualname__ = name
    full_name = f"{function.__module__}.{function.__qualname__}"
    if full_name in _named:
        raise ValueError(
            f"{full_name} is compiled already: give each function a name of its own, and load a "
            "module that was changed in a new process"
        )
    _named[full_name] = function
    # nogil: a kernel runs beside the thread that computes. error_model: x / 0 is Inf, as in torch.
    return numba.njit(nogil=True, error_model="numpy", forceinline=forceinline)(function)
