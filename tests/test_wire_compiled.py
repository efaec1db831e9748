"""The cache of compiled kernels: fresh with its sources, and never in the way."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

import thinwire.wire.kernels.compiled as compiled

SCRIPT = """
import numpy as np
from thinwire.wire.kernels.compiled import entry

@entry
def double(x):
    return x * 2

print(double(21.0))
"""


def _run(script: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-B", str(script)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )


def test_machine_code_is_kept_and_found_again(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    cache = tmp_path / "cache"
    assert _run(script, NUMBA_CACHE_DIR=str(cache)).stdout == "42.0\n"
    first = {path: path.stat().st_mtime_ns for path in cache.rglob("*.nbc")}
    assert len(first) == 1
    assert _run(script, NUMBA_CACHE_DIR=str(cache)).stdout == "42.0\n"
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*.nbc")} == first


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
# nothing at all, a pickle cut inside, and what is no pickle
@pytest.mark.parametrize("damage", ["empty", "cut", "other"])
def test_a_damaged_cache_costs_nothing_but_time(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    damage: str,
) -> None:
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))

    def compiled_names() -> list[str]:
        """As a new process would, and what it had to compile."""

        def double(x: float) -> float:
            return x * 2

        caplog.clear()
        monkeypatch.setattr(compiled, "_named", {})
        with caplog.at_level(logging.INFO, compiled.__name__):
            assert compiled.entry(double)(21.0) == 42.0
        return [text for text in caplog.messages if text.startswith("compiling ")]

    assert len(compiled_names()) == 1
    assert compiled_names() == []
    (path,) = tmp_path.rglob(f"*.{kind}")
    whole = path.read_bytes()
    damages = {"empty": b"", "cut": whole[: len(whole) // 2], "other": b"\x93" * len(whole)}
    path.write_bytes(damages[damage])
    assert len(compiled_names()) == 1
    assert compiled_names() == []  # it was mended


CLOSING_SCRIPT = """
from thinwire.wire.kernels.compiled import entry, loop

@loop
def double(x):
    return x * 2

@loop
def triple(x):
    return x * 3

def applied(name, function):
    def apply(x):
        return function(x)
    return entry(apply, name=name)

print(applied("apply_double", double)(7.0), applied("apply_triple", triple)(7.0))
"""


def test_functions_that_close_over_other_loops_are_kept_apart_and_found_again(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script.py"
    script.write_text(CLOSING_SCRIPT)
    cache = tmp_path / "cache"
    assert _run(script, NUMBA_CACHE_DIR=str(cache)).stdout == "14.0 21.0\n"
    first = {path: path.stat().st_mtime_ns for path in cache.rglob("*.nbc")}
    assert len(first) == 2
    assert _run(script, NUMBA_CACHE_DIR=str(cache)).stdout == "14.0 21.0\n"
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*.nbc")} == first


def test_no_directory_to_write_to_costs_nothing_but_time(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    nowhere = tmp_path / "file"
    nowhere.write_text("a file, so that no directory can be made below it")
    # Root may write everywhere, so permissions would not stop it; a file in the way does.
    (tmp_path / "__pycache__").write_text("")
    run = _run(
        script,
        NUMBA_CACHE_DIR=str(nowhere / "cache"),
        XDG_CACHE_HOME=str(nowhere / "xdg"),
        HOME=str(nowhere / "home"),
    )
    assert run.stdout == "42.0\n"
    assert run.stderr == ""


def test_a_full_disk_does_not_stop_a_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @compiled.entry
    def triple(x: float) -> float:
        return x * 3

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile.save", full)
    assert triple(2.0) == 6.0


def test_the_key_covers_every_file_of_the_package() -> None:
    stamp = compiled._WholePackage().get_source_stamp()
    assert len(stamp) == 64
    names = {path.name for path in Path(compiled.__file__).parent.glob("*.py")}
    assert names >= {"compiled.py", "planes.py", "rounding.py", "scales.py", "uniform.py"}


def test_without_a_compiler_the_reference_serves() -> None:
    code = (
        "import torch; from thinwire.formats import parse_format;"
        "from thinwire.wire import codec_for, reference_codec; f = parse_format('int4');"
        "print(codec_for(f, torch.device('cpu')) is reference_codec(f))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == "True\n"


def test_no_two_functions_share_a_name() -> None:
    """A linker that finds two takes either: wrong bytes would be sent without a word."""

    def made(bias: int, name: str) -> object:
        return compiled.loop(lambda x: x + bias, name=name)

    kept = [made(number, f"test_no_two_functions_share_a_name_{number}") for number in (1, 2)]
    assert len(kept) == 2  # and alive: a module that was not loaded whole may be loaded again
    with pytest.raises(ValueError, match="a name of its own"):
        made(3, "test_no_two_functions_share_a_name_2")


# a loop so long that it stays a function of its own in machine code
EXCHANGED = f"""
import sys
from thinwire.wire.kernels.compiled import entry, loop

def adds(bias, name):
    def add(x):
        y = x
{chr(10).join(f"        y = (y * {2 * i + 3} + x) % 1000003 if y > {i} else y + 1" for i in range(99))}
        return bias + y
    return loop(add, name=name)

one, ten = adds(1, "adds_one"), adds(10, "adds_ten")

@entry
def with_one(x):
    return one(x)

@entry
def with_ten(x):
    return ten(x)

print(*((with_one if word == "one" else with_ten)(0) for word in sys.argv[1:]))
"""  # noqa: E501


def test_what_two_processes_compiled_is_not_exchanged(tmp_path: Path) -> None:
    """Each counts from one: without names of their own both would call their loop the same."""
    script = tmp_path / "script.py"
    script.write_text(EXCHANGED)

    def run(*words: str) -> str:
        command = [sys.executable, "-B", str(script), *words]
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    one, ten = run("one").strip(), run("ten").strip()
    assert int(ten) == int(one) + 9
    assert run("one", "ten").split() == [one, ten]
