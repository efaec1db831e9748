"""Saying that kernels are compiled: without a word the first run on a machine looks like a hang."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["compilation_told"]

_LOGGER = "thinwire.wire.kernels.compiled"


@contextmanager
def compilation_told() -> Iterator[None]:
    """While this lasts, the first kernel that has to be compiled is told on standard error."""
    logger, handler = logging.getLogger(_LOGGER), _Once()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


class _Once(logging.Handler):
    """One line for any number of kernels."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._told = False

    def emit(self, record: logging.LogRecord) -> None:
        """Say so, unless it was said."""
        del record
        if not self._told:
            self._told = True
            sys.stderr.write("thinwire: compiling kernels, once on this machine\n")
