"""The program ``thinwire``: its verbs, its exit codes, and how it says what went wrong.

0    done
1    failed at its work: data, the lab, a rank, writing; or validate found a bound broken
2    wrong usage: an option, a recipe, a format, settings in a file, an output not to be written
3    nothing fits
4    a calibration that cannot be trusted
130  interrupted, 143 terminated, as shells count signals
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from importlib import metadata
from types import FrameType
from typing import Annotated

import typer

from thinwire.cli.calibrate import calibrate
from thinwire.cli.compare import compare
from thinwire.cli.estimate import estimate
from thinwire.cli.inspect import inspect
from thinwire.cli.plan import plan
from thinwire.cli.usage import explain_usage
from thinwire.cli.validate import validate
from thinwire.errors import ConfigError, ThinwireError
from thinwire.quoting import shortened

__all__ = ["app", "main"]

app = typer.Typer(
    name="thinwire",
    help="Sharded PyTorch training over thin wires: compressed collectives, measured and planned.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
for verb in (compare, plan, estimate, inspect, calibrate, validate):
    app.command()(verb)


INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM


def print_version(wanted: bool) -> None:
    """Print the version and end, before typer asks for a verb."""
    if wanted:
        typer.echo(f"thinwire {metadata.version('thinwire')}")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and exit.",
            callback=print_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Sharded PyTorch training over thin wires: compressed collectives, measured and planned."""
    del version  # its callback has served it


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb and return the exit code.

    Args:
        arguments: without the program's name; ``None`` takes those of the process.

    Whatever is raised on purpose becomes one line on standard error. A fault of thinwire itself
    keeps its traceback, for it is to be reported.
    """
    _replace_closed_streams()
    restored = signal.signal(signal.SIGTERM, _terminate)
    try:
        result = app(args=arguments, prog_name="thinwire", standalone_mode=False)
        sys.stdout.flush()
        if result == INTERRUPTED:  # what typer makes of a KeyboardInterrupt
            raise KeyboardInterrupt
        return result if isinstance(result, int) else 0
    except typer.TyperException as error:
        return _fail(error.exit_code, explain_usage(error))
    except ConfigError as error:
        return _fail(2, str(error))
    except ThinwireError as error:
        return _fail(1, str(error))
    except KeyboardInterrupt:
        return _fail(INTERRUPTED, "interrupted")
    except typer.Abort as error:
        if isinstance(error.__cause__, EOFError):  # not the user's: nothing here asks for input
            raise error.__cause__ from None
        return _fail(INTERRUPTED, "interrupted")
    except _TerminatedError:
        return _fail(TERMINATED, "terminated")
    except BrokenPipeError:
        _drop_output()  # whoever read it has left
        return 1
    except OSError as error:
        _drop_output()
        path = "" if error.filename is None else f" of {shortened(error.filename)}"
        return _fail(1, f"reading or writing{path} failed: {error.strerror or error}")
    finally:
        signal.signal(signal.SIGTERM, restored)


def _replace_closed_streams() -> None:
    """A program started with a closed stream (``>&-``) has none: what goes there goes nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def _drop_output() -> None:
    """Spare the user a second failure, when Python flushes at exit what cannot be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _TerminatedError(BaseException):
    """SIGTERM arrived: unwinds like an interrupt, so that ranks and files are cleared away."""


def _terminate(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise _TerminatedError


def _fail(exit_code: int, message: str) -> int:
    one_line = " ".join(message.split())
    sys.stderr.write(f"thinwire: error: {one_line}\n")
    return exit_code
