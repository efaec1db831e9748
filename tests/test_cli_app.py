"""The program as a whole: its options, its exit codes, one sentence for what went wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import typing
from collections.abc import Callable
from typing import NoReturn

import pytest
import typer.main

from clear_sentence import check_clear
from thinwire.cli import app as cli
from thinwire.cli import main
from thinwire.errors import ConfigError, FormatError, InputError, LabError, RankError
from thinwire.quoting import quoted

OPTIONS = {
    "": {"--version", "--help"},
    "compare": {
        "--recipes",
        "--model",
        "--data",
        "--seq",
        "--micro-batch",
        "--steps",
        "--learning-rate",
        "--seed",
        "--hosts",
        "--ranks",
        "--link",
        "--also-unshaped",
        "--device",
        "--cluster",
        "--json",
        "--html",
        "--help",
    },
    "plan": {
        "--model",
        "--seq",
        "--micro-batch",
        "--accumulate",
        "--recipes",
        "--search",
        "--hosts",
        "--ranks",
        "--tp",
        "--pp",
        "--device",
        "--memory",
        "--host-memory",
        "--within",
        "--link",
        "--latency",
        "--loss",
        "--protocol",
        "--cluster",
        "--json",
        "--html",
        "--help",
    },
    "estimate": {
        "--parameters",
        "--formats",
        "--link",
        "--latency",
        "--loss",
        "--protocol",
        "--device",
        "--json",
        "--html",
        "--help",
    },
    "inspect": {
        "--formats",
        "--layers",
        "--exact",
        "--rank-by",
        "--top",
        "--json",
        "--html",
        "--help",
    },
    "calibrate": {
        "--output",
        "--hosts",
        "--ranks",
        "--link",
        "--device",
        "--preset",
        "--disk",
        "--rounds",
        "--tolerance",
        "--json",
        "--help",
    },
    "validate": {"--rows", "--cells", "--json", "--help"},
}
"""Scripts rely on these: one that is taken away or renamed breaks somebody's run."""


def commands() -> dict[str, typer.core.TyperCommand]:
    group = typer.main.get_command(cli.app)
    found = {"": group}
    found.update(getattr(group, "commands", {}))
    return found  # type: ignore[return-value]


def test_the_set_of_verbs_and_options_is_frozen() -> None:
    found = {
        name: {
            option
            for parameter in command.params
            for option in parameter.opts
            if option.startswith("-")  # an argument has a name, which nobody types
        }
        | {"--help"}
        for name, command in commands().items()
    }
    assert found == OPTIONS


@pytest.mark.parametrize("verb", OPTIONS)
def test_every_help_is_printed_and_explains_every_option(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*([verb] if verb else []), "--help"]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    for option in OPTIONS[verb]:
        assert option in told.out
    for parameter in commands()[verb].params:
        assert getattr(parameter, "help", None), f"{parameter.name} has no help"


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    import thinwire

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"thinwire {thinwire.__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["--nonsense"],
        ["compare", "--nonsense"],
        ["compare", "--hosts", "x"],
        *([verb, "nonsense"] for verb in OPTIONS if verb not in ("", "inspect")),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("thinwire: error: ")
    assert told.err.count("\n") == 1
    verb = [item for item in arguments[:1] if item in OPTIONS]
    assert told.err.endswith(f"; see {' '.join(['thinwire', *verb])} --help\n")


REQUIRED = {
    "compare": [],
    "plan": ["--model", "1M"],
    "estimate": ["--parameters", "1M", "--link", "1gbit"],
    "inspect": ["a-file"],
    "calibrate": [],
    "validate": [],
}


def number_options() -> list[tuple[str, str, type, float | None]]:
    """Every option that takes a number: its verb, name, kind, and least value."""
    found = []
    for command in cli.app.registered_commands:
        verb = command.callback
        assert verb is not None
        for name, hint in typing.get_type_hints(verb, include_extras=True).items():
            if typing.get_origin(hint) is not typing.Annotated:
                continue
            kinds = {int, float} & {*typing.get_args(hint.__origin__), hint.__origin__}
            option = f"--{name.replace('_', '-')}"
            found += [(verb.__name__, option, kind, hint.__metadata__[0].min) for kind in kinds]
    return found


def test_the_options_that_take_a_number_are_found() -> None:
    found = {(verb, option) for verb, option, *_ in number_options()}
    assert len(found) >= 20
    expected = {("plan", "--hosts"), ("plan", "--loss"), ("estimate", "--loss"), ("plan", "--pp")}
    assert expected | {("compare", "--learning-rate"), ("inspect", "--top")} <= found


@pytest.mark.parametrize("text", ["abc", "1e3x", "", " ", "1%", "1,5", "0x10", "9" * 5000])
@pytest.mark.parametrize(("verb", "option", "kind", "least"), number_options())
def test_what_is_no_number_is_shown_with_what_is_one(
    verb: str,
    option: str,
    kind: type,
    least: float | None,
    text: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if kind is float and text == "9" * 5000:
        return  # infinite, which each verb refuses by itself
    assert main([verb, *REQUIRED[verb], option, text]) == 2
    told = capsys.readouterr().err
    check_clear(told.removesuffix("\n"), f"thinwire: error: {option} {quoted(text)}: ")
    assert "Input should" not in told
    assert told.endswith(f"; see thinwire {verb} --help\n")
    example = told.split("such as ")[-1].split(";")[0]
    if "such as" in told:
        assert kind(example) >= (least or 0)


@pytest.mark.parametrize(("verb", "option", "kind", "least"), number_options())
def test_a_number_below_the_least_is_told_the_least(
    verb: str, option: str, kind: type, least: float | None, capsys: pytest.CaptureFixture[str]
) -> None:
    if least is None:
        return  # looked at by the verb
    assert main([verb, *REQUIRED[verb], option, str(kind(least - 1))]) == 2
    told = capsys.readouterr().err
    assert f"error: {option} '{least - 1}': give at least {least}; see" in told


@pytest.mark.parametrize("text", ["1e3", "1.5", "nan"])
def test_a_whole_number_is_written_in_digits(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", "1M", "--hosts", text]) == 2
    told = capsys.readouterr().err
    assert f"--hosts '{text}': this is not a whole number; write one such as 4; see" in told


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], list[str]]:
    """Gives the program one verb, which raises."""

    def install(error: BaseException) -> list[str]:
        broken = typer.Typer(pretty_exceptions_enable=False)

        @broken.callback()
        def program() -> None:
            """Have verbs."""

        @broken.command()
        def verb() -> NoReturn:
            raise error

        monkeypatch.setattr(cli, "app", broken)
        return ["verb"]

    return install


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("a wrong option"), 2),
        (FormatError("a wrong format"), 2),
        (InputError("a wrong file"), 1),
        (LabError("no link"), 1),
        (RankError("rank 1\n  died"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_what_is_raised_on_purpose_is_one_line_and_an_exit_code(
    error: BaseException,
    code: int,
    failing: Callable[[BaseException], list[str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(failing(error)) == code
    told = capsys.readouterr()
    words = " ".join(str(error).split()) or "interrupted"
    assert told.err == f"thinwire: error: {words}\n"
    assert told.out == ""


def test_a_fault_of_the_program_itself_keeps_its_traceback(
    failing: Callable[[BaseException], list[str]],
) -> None:
    # typer takes an EOFError for the end of what the user types
    for error in (ZeroDivisionError(), EOFError("Ran out of input")):
        with pytest.raises(type(error)) as raised:
            main(failing(error))
        assert raised.value is error


def test_the_signal_handler_is_given_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    main(["--version"])
    assert signal.getsignal(signal.SIGTERM) is before


LOADED = """
import sys
{}
sys.stderr.write(" ".join(sorted({{"torch", "matplotlib", "numba"}} & set(sys.modules))))
"""


@pytest.mark.parametrize(
    ("code", "loaded"),
    [
        ("import thinwire.cli", ""),
        ("from thinwire.cli import main; main(['compare', '--help'])", ""),
        ("import thinwire.train.worker", "torch"),  # proves that the others could fail
    ],
)
def test_asking_for_help_loads_nothing_heavy(code: str, loaded: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED.format(code)], capture_output=True, text=True, check=True
    )
    assert loaded in done.stderr
    assert bool(done.stderr.strip()) is bool(loaded)


def test_a_reader_that_leaves_early_gets_no_traceback() -> None:
    """As ``thinwire ... | head -1`` does."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "thinwire", "compare", "--help"],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)
    assert done.returncode == 1
    assert done.stderr == ""


ESTIMATE = [sys.executable, "-m", "thinwire", "estimate", "--parameters", "1e6", "--link", "1gbit"]


def test_a_full_disk_is_one_sentence() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*ESTIMATE, "--latency", "1ms"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "No space left" in done.stderr


def test_a_closed_output_is_no_failure() -> None:
    """A program may be started without a standard output; Python then has none to write to."""
    code = "import os, sys; os.close(1); os.execv(sys.argv[1], sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, *ESTIMATE, "--latency", "1ms"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
