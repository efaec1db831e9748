"""``thinwire plan``, ``estimate`` and ``validate`` as people and programs meet them."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clear_sentence import check_clear
from thinwire.cli import main

CLUSTER = ["--hosts", "8", "--ranks", "4", "--device", "a100-40gb", "--link", "100gbit"]
PLAN = ["plan", "--model", "gpt:24x2048x16", *CLUSTER]
ESTIMATE = ["estimate", "--parameters", "1e6", "--link", "100mbit", "--latency", "10ms"]


def test_a_plan_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--within", "300GB/s", "--latency", "20us", "--micro-batch", "1"]
    assert main([*PLAN, *arguments, "--recipes", "zero2,zeropp,thin"]) == 0
    told = capsys.readouterr().out
    assert "1.21B parameters, 32 sequences of 2048 tokens a step" in told
    for said in ("Time and traffic", "Memory of the worst rank", "optimizer states", "takes"):
        assert said in told


def test_a_preset_is_planned_within_its_positions(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", "--model", "gpt2", "--hosts", "2", "--link", "1gbit", "--recipes", "zero3"]
    assert main(arguments) == 0
    told = capsys.readouterr().out
    assert "2 sequences of 1024 tokens a step" in told
    assert "all positions that the model has" in told
    assert main([*arguments, "--seq", "1025"]) == 2
    assert "gpt2: has 1024 positions; use --seq 1024 or shorter" in capsys.readouterr().err


def test_a_plan_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PLAN, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["choice"] in {recipe["name"] for recipe in document["recipes"]}
    assert document["break_even_bit_per_s"] > 1e9


def test_a_search_shows_the_best_ten(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PLAN, "--search", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["recipes"]) == 10
    # what is within 1 % of the fastest is ranked by what it loses, so times need not rise
    assert document["recipes"][0]["step_s"] <= 1.01 * document["recipes"][-1]["step_s"]


def test_nothing_fits_is_exit_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", "--model", "70B", "--hosts", "2", "--device", "l4", "--link", "10gbit"]
    assert main([*arguments, "--recipes", "zero3"]) == 3
    assert "Nothing fits" in capsys.readouterr().out
    assert main([*arguments, "--recipes", "zero3", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["choice"] is None


@pytest.mark.parametrize(
    ("formats", "told"),
    [
        ("bf16,bf16", "'bf16' is listed twice"),
        ("int4/128, bf16,int4/128", "'int4/128' is listed twice"),
        ("lowrank=4", "write lowrank=4/ROWSxCOLUMNS"),
    ],
)
def test_a_list_of_formats_that_cannot_be_priced(
    formats: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*ESTIMATE, "--formats", formats]) == 2
    assert told in " ".join(capsys.readouterr().err.split())


def test_a_matrix_of_low_rank_is_priced(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ESTIMATE, "--formats", "lowrank=4/1000x1000", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["payload_bytes"] == 4 * 4 * (1000 + 1000)  # two factors of four columns in fp32


def test_an_ideal_link_loses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ESTIMATE, "--loss", "0.01", "--protocol", "ideal"]) == 2
    assert "an ideal link loses nothing" in capsys.readouterr().err


def test_a_cluster_file_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(
        "[cluster]\nhosts = 2\nranks_per_host = 1\n[device]\npreset = 'cpu'\n"
        "[link]\nbit_per_s = 1e8\nlatency_s = 1e-3\n"
    )
    arguments = ["plan", "--model", "small", "--seq", "64", "--cluster", str(file), "--json"]
    assert main(arguments) == 0
    slow = json.loads(capsys.readouterr().out)["recipes"][0]["step_s"]
    assert main([*arguments, "--link", "10gbit"]) == 0
    assert json.loads(capsys.readouterr().out)["recipes"][0]["step_s"] < slow


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["plan", "--model", "nonsense"], "model 'nonsense': not known"),
        (["plan", "--model", "gpt:2x64x2", "--hosts", "2"], "give --link"),
        (["plan", "--model", "gpt:2x64x2", "--device", "abacus"], "device 'abacus': not known"),
        ([*PLAN, "--recipes", "zero9"], "unknown recipe 'zero9'"),
        ([*PLAN, "--tp", "3"], "not divisible by tp x pp"),
        ([*PLAN, "--within", "300"], "the unit is missing"),
        ([*PLAN, "--seq", "0"], "--seq"),
        ([*PLAN, "--cluster", "no-such.toml"], "cannot be read"),
        ([*PLAN, "--protocol", "pigeon"], "protocol 'pigeon': not known"),
        (["plan"], "Missing option '--model'"),
        (["estimate", "--parameters", "0", "--link", "1gbit"], "it must be more than zero"),
        ([*ESTIMATE, "--formats", "int9"], "unknown format 'int9'"),
        ([*ESTIMATE, "--loss", "1"], "lets nothing through"),
        ([*ESTIMATE, "--json", "--loss", "1"], "lets nothing through"),
        ([*ESTIMATE, "--formats", "int4/" + "9" * 20], "blocks have 8 to 1048576"),
        ([*ESTIMATE, "--formats", "lowrank=" + "9" * 20], "a whole rank of at most 6 digits"),
        ([*ESTIMATE, "--link", "1e30gbit"], "it must be at most 1e24 bit/s"),
        (["plan", "--model", "gpt:1000000x64x4"], "layers = 1000000 is too large: give 2,000"),
        (["plan", "--model", "gpt:" + "9" * 5000 + "x64x4"], "a number in it is too large"),
        (["plan", "--model", "0"], "model '0': it must be more than zero"),
        (["plan", "--model", "1e30"], "model '1e30': it must be at most 1e24"),
        (["plan", "--model", "1.5"], "model '1.5': it must be a whole number"),
        (["plan", "--model", "2"], "the nearest GPT"),
        ([*PLAN, "--hosts", "-3"], "-3 hosts: at least 1"),
    ],
)
def test_a_mistake_gets_one_sentence(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("thinwire: error: ")
    assert said in told.err
    check_clear(told.err.removesuffix("\n"))


LONG = "x" * 100_000


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "--model", LONG],
        ["plan", "--model", f"{LONG}.json"],
        ["plan", "--model", f"gpt:{LONG}"],
        *([*PLAN, option, LONG] for option in ("--device", "--link", "--latency", "--protocol")),
        *([*PLAN, option, LONG] for option in ("--within", "--memory", "--host-memory", "--tp")),
        *([*PLAN, option, LONG] for option in ("--cluster", "--seq", "--loss", f"--{LONG}")),
        [*PLAN, "--html", f"{LONG}/page.html"],
        *(
            [*PLAN, "--recipes", recipe]
            for recipe in (
                LONG,
                f"{LONG}.toml",
                f"zeropp:{LONG}",
                f"zeropp:{LONG}=1",
                f"zeropp:grads={LONG}",
                f"zeropp:stage={LONG}",
                f"zeropp:strict={LONG}",
                f"zeropp:replica={LONG}",
                f"zeropp:offload={LONG}",
                f"zeropp:grads_for={LONG}",
                f"zeropp:grads_for={LONG}>int8",
            )
        ),
        *(
            [*ESTIMATE, "--formats", text]
            for text in (
                LONG,
                f"int4/{LONG}",
                f"int4+{LONG}",
                f"int4+{LONG}=1",
                f"int4+clip={LONG}",
                f"topk={LONG}",
                f"topk={LONG}/8",
                f"lowrank={LONG}",
                f"lowrank=4/{LONG}",
            )
        ),
        [*ESTIMATE, "--parameters", LONG],
        ["validate", "--cells", LONG],
        *(["calibrate", option, LONG] for option in ("--preset", "--device", "--disk", "--link")),
        ["calibrate", "--output", LONG],
        [LONG],
    ],
    ids=lambda arguments: " ".join(item.replace(LONG, "LONG") for item in arguments[-2:]),
)
def test_what_is_too_long_is_not_repeated_whole(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    check_clear(told.err.removesuffix("\n"), "thinwire: error: ")


@pytest.mark.parametrize("text", ["", " "])
@pytest.mark.parametrize(
    "arguments",
    [
        [*PLAN, "--cluster"],
        [*PLAN, "--html"],
        [*ESTIMATE, "--html"],
        ["validate", "--cells"],
        ["calibrate", "--output"],
        ["calibrate", "--disk"],
        ["compare", "--data"],
        ["compare", "--html"],
        ["compare", "--cluster"],
        ["inspect"],
        ["inspect", "a", "--html"],
    ],
    ids=lambda arguments: f"{arguments[0]} {arguments[-1]}",
)
def test_an_empty_path_is_not_the_present_folder(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, text]) == 2
    told = capsys.readouterr().err
    assert "it is empty: name a path" in told
    assert f"see thinwire {arguments[0]} --help" in told


def test_an_estimate_for_people_and_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(ESTIMATE) == 0
    told = capsys.readouterr().out
    assert "1M parameters over 100 Mbit/s, 10 ms one way, ideal" in told
    assert re.search(r"fp32 +4 MB +330 ms", told)
    assert main([*ESTIMATE, "--json", "--loss", "0.01", "--formats", "fp32,int4/128"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["format"] for row in rows] == ["fp32", "int4/128"]
    assert rows[0]["transfer_s"] > 1  # a lossy TCP connection is far below the link's rate


ONE = ["--hosts", "1", "--ranks", "1", "--recipes", "zero3"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["plan", "--model", "gpt:2x64x2", "--seq", "1", *ONE], "1 sequence of 1 token a step"),
        (["estimate", "--parameters", "1", "--link", "1gbit"], "1 parameter over 1 Gbit/s"),
        (["estimate", "--parameters", "1e24", "--link", "1gbit"], "1e24 parameters over"),
        ([*ESTIMATE, "--loss", "1e-9"], "0.0000001% of packets lost"),
    ],
)
def test_numbers_and_words_agree(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 0
    told = capsys.readouterr().out
    assert said in told
    assert not re.search(r"(?<![\d.])1 (sequences|tokens|parameters|hosts|ranks)\b|\de\+\d", told)


def test_a_page_says_what_the_terminal_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of it, but for the line that names the page."""
    page = tmp_path / "page.html"
    arguments = [*ESTIMATE, "--loss", "0.01", "--device", "l4", "--html", str(page)]
    assert main(arguments) == 0
    content = html.unescape(page.read_text())
    words = " ".join(capsys.readouterr().out.partition("page: ")[0].replace("\u2500", "").split())
    for sentence in (words[: words.index(" format ")], words[words.index("Codec times") :]):
        assert sentence in content
    for said in ("10 ms one way", "1% of packets lost", "tcp", "Codec times: l4"):
        assert said in content


def test_a_validation_for_people_and_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate"]) == 0
    told = capsys.readouterr().out
    assert "All bounds hold." in told
    assert "fitted on 22B full" in told
    assert main(["validate", "--rows"]) == 0
    assert not re.search(r"\de\+\d", capsys.readouterr().out)
    assert main(["validate", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["holds"]


@pytest.mark.parametrize(
    "arguments", [PLAN, ["plan", "--model", "gpt:2x64x2", "--seq", "64"], ESTIMATE]
)
def test_a_page_is_written_whole(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert main([*arguments, "--html", str(page)]) == 0
    assert f"page: {page}" in capsys.readouterr().out.replace("\n", "")
    content = page.read_text()
    assert content.endswith("</html>\n")
    assert "<svg" in content
    assert [item.name for item in tmp_path.iterdir()] == ["page.html"]
    for outside in ("http://", "https://", "<script", "src="):
        assert outside not in content.replace("http://www.w3.org/", "")


def test_a_page_that_cannot_be_written_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seen before the work; what fails at its end is exit code 1."""
    assert main([*ESTIMATE, "--html", str(tmp_path)]) == 2
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("verb", [ESTIMATE, ["plan", "--model", "1M"]], ids=["estimate", "plan"])
def test_the_folder_of_a_page_is_made(verb: list[str], tmp_path: Path) -> None:
    assert main([*verb, "--html", str(tmp_path / "new" / "page.html")]) == 0
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["page.html"]


@pytest.mark.parametrize(
    "given",
    [
        "cluster",
        "model",
        "model between blanks",
        "model's folder",
        "recipe",
        "recipe after a blank",
    ],
)
def test_a_plan_is_not_written_over_what_it_is_made_from(
    given: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    is_toml = given.startswith(("cluster", "recipe"))
    read = tmp_path / ("read.toml" if is_toml else "config.json")
    read.write_text("kept")
    options = {
        "cluster": ["--model", "1M", "--cluster", str(read)],
        "model": ["--model", str(read)],
        "model between blanks": ["--model", f" {read} "],
        "model's folder": ["--model", str(tmp_path)],
        "recipe": ["--model", "1M", "--recipes", f"zero3,{read}"],
        "recipe after a blank": ["--model", "1M", "--recipes", f"zero3, {read}"],
    }
    assert main(["plan", *options[given], "--html", str(read)]) == 2
    assert "would be overwritten" in capsys.readouterr().err
    assert read.read_text() == "kept"


def test_a_plan_takes_half_a_second_more_than_python() -> None:
    """0.33 s on an idle core; processor time, and twice the bound, for machines under load."""
    script = (
        "import resource, sys\n"
        "from thinwire.cli import main\n"
        f"main({[*PLAN, '--json']!r})\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_utime, file=sys.stderr)\n"
    )
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert float(done.stderr) < 1.0, f"{time.monotonic() - started} s by the clock"
