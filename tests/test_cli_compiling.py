"""Compiling is told once, and only where it happens."""

from __future__ import annotations

import logging

import pytest

from thinwire.cli.compiling import compilation_told

LOGGER = logging.getLogger("thinwire.wire.kernels.compiled")


def test_many_kernels_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with compilation_told():
        for name in ("first", "second"):
            LOGGER.info("compiling %s", name)
    LOGGER.info("compiling third")
    told = capsys.readouterr()
    assert told.err == "thinwire: compiling kernels, once on this machine\n"
    assert told.out == ""


def test_nothing_compiled_is_nothing_said(capsys: pytest.CaptureFixture[str]) -> None:
    before = (LOGGER.level, list(LOGGER.handlers))
    with pytest.raises(ZeroDivisionError), compilation_told():
        raise ZeroDivisionError
    assert capsys.readouterr().err == ""
    assert (LOGGER.level, LOGGER.handlers) == before


def test_the_logger_is_that_of_the_kernels() -> None:
    from thinwire.wire.kernels import compiled

    assert compiled._log is LOGGER
