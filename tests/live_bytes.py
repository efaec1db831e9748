"""Counts the bytes of live tensors while a block runs, and the highest count.

Every storage that an operator reads or makes is followed until it is freed; FSDP2 frees by resizing
a storage, which no operator shows, so that is watched too. Only the own thread is seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["LiveBytes"]


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows storages from now on.

    Args:
        held: tensors that are live already.

    Attributes:
        current: bytes that are live now.
        peak: the most that were.
    """

    def __init__(self, held: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sizes: dict[int, int] = {}
        self.current = 0
        self.peak = 0
        self._resize: Callable[..., Any] = torch.UntypedStorage.resize_
        for tensor in held:
            self._follow(tensor)

    def __enter__(self) -> Self:
        mode, resize = self, self._resize

        def watched(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            mode._note(storage)
            return result

        torch.UntypedStorage.resize_ = watched  # type: ignore[method-assign, assignment]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, result)):
            if isinstance(leaf, Tensor):
                self._follow(leaf)
        return result

    def _follow(self, tensor: Tensor) -> None:
        local = getattr(tensor, "_local_tensor", tensor)
        self._note(local.untyped_storage())

    def _note(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self._sizes:
            weakref.finalize(storage, self._drop, key)
        self.current += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        self.peak = max(self.peak, self.current)

    def _drop(self, key: int) -> None:
        self.current -= self._sizes.pop(key, 0)
