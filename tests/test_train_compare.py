"""Whole comparisons of a small model, in the lab and over loopback, and what stops one early."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NoReturn

import pytest

from lab_permission import NEEDS_LAB
from thinwire.errors import ConfigError, InputError, ThinwireError
from thinwire.recipes import parse_recipes
from thinwire.train import compare as comparing
from thinwire.train.compare import CompareRequest, compare
from thinwire.train.comparison import Comparison, Link, Run
from thinwire.train.progress import NoProgress, StepEvent

HEADERS = 66 / 1448  # Ethernet, IPv4 and TCP with timestamps, per full segment


class Record(NoProgress):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.steps: list[StepEvent] = []

    def begin_setting(self, link: Link | None, notice: str | None) -> None:
        self.told.append("unshaped" if link is None else "shaped")

    def begin_run(self, recipe: str, steps: int) -> None:
        self.told.append(f"begin {recipe} {steps}")

    def step(self, event: StepEvent) -> None:
        self.steps.append(event)

    def end_run(self, run: Run) -> None:
        self.told.append(f"end {run.recipe}")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text"
    path.write_bytes(b"row, row, row your boat, gently down the stream. " * 400)
    return path


def make_request(text: Path, **changes: Any) -> CompareRequest:
    values: dict[str, Any] = {
        "recipes": parse_recipes("zero3:compute=fp32,zeropp"),
        "hosts": 2,
        "ranks_per_host": 1,
        "link_bit_per_s": None,
        "also_unshaped": False,
        "model": "gpt:2x64x2",
        "data": text,
        "seq_len": 32,
        "micro_batch": 1,
        "steps": 4,
        "seed": 0,
        "learning_rate": 1e-3,
        "device": "cpu",
        **changes,
    }
    return CompareRequest(**values)


def run(request: CompareRequest) -> Comparison:
    return compare(request, progress=NoProgress())


@pytest.fixture
def no_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thinwire.lab.opening.lab_obstacle", lambda *, shaped: "not allowed here")


@pytest.mark.usefixtures("no_lab")
class TestOverLoopback:
    def test_every_recipe_is_run_told_about_and_measured(self, text: Path) -> None:
        record = Record()
        comparison = compare(make_request(text), progress=record)
        assert record.told == [
            "unshaped",
            "begin zero3:compute=fp32 4",
            "end zero3:compute=fp32",
            "begin zeropp 4",
            "end zeropp",
        ]
        assert [event.step for event in record.steps] == [0, 1, 2, 3] * 2
        stock, compressed = comparison.main.runs
        assert stock.losses[0] == pytest.approx(5.545, rel=0.02)  # ln 256
        assert stock.losses[0] == pytest.approx(compressed.losses[0] or 0, rel=0.01)
        assert compressed.sent_bytes_per_rank < stock.sent_bytes_per_rank / 4
        assert stock.step_s.min <= stock.step_s.median <= stock.step_s.max
        assert comparison.parameters == stock.parameters == 2 * (12 * 64**2 + 13 * 64) + 546 * 64

    def test_without_namespaces_it_says_so_and_leaves_nothing_behind(
        self, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scratch = tmp_path / "scratch"
        scratch.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(scratch))
        comparison = compare(
            make_request(text, recipes=parse_recipes("zeropp"), link_bit_per_s=1e8, steps=1),
            progress=NoProgress(),
            predict=lambda recipe, model, request, link: 1.5,
        )
        assert comparison.main.link is None
        assert "not allowed here" in (comparison.main.notice or "")
        (only,) = comparison.main.runs
        assert only.nic_bytes_per_rank is None
        assert only.predicted_step_s == 1.5
        assert list(scratch.iterdir()) == []

    def test_bytes_within_and_across_hosts_are_told_apart(self, text: Path) -> None:
        (single,) = run(
            make_request(text, recipes=parse_recipes("qsdp"), hosts=1, ranks_per_host=2, steps=1)
        ).main.runs
        assert single.across_bytes_per_rank == 0
        assert single.bits_per_parameter == 0
        assert single.sent_bytes_per_rank > 0

    def test_one_rank_alone_trains_and_sends_nothing(self, text: Path) -> None:
        (alone,) = run(
            make_request(text, recipes=parse_recipes("zero3:compute=fp32"), hosts=1, steps=2)
        ).main.runs
        assert alone.sent_bytes_per_rank == 0
        assert alone.validation_loss is not None

    def test_a_hugging_face_model_and_a_folder_of_text_serve_too(
        self, text: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "a.txt").write_bytes(text.read_bytes())
        config = {
            "model_type": "gpt2",
            "vocab_size": 256,
            "n_positions": 32,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 2,
        }
        (tmp_path / "config.json").write_text(json.dumps(config))
        (compressed,) = run(
            make_request(
                tmp_path / "folder",
                recipes=parse_recipes("zeropp"),
                model=str(tmp_path / "config.json"),
                steps=2,
            )
        ).main.runs
        assert compressed.losses[0] == pytest.approx(5.545, rel=0.02)
        # stock sends half of fp32 weights twice and half of the gradients: 6 bytes a parameter
        assert 0 < compressed.sent_bytes_per_rank < 6 / 2 * compressed.parameters


class TestInTheLab:
    pytestmark = NEEDS_LAB

    def test_the_ledger_agrees_with_the_interface(self, text: Path) -> None:
        """Within 3 %, headers apart: the counter has them on top, fewer where it is offloaded."""
        comparison = run(
            make_request(
                text,
                recipes=parse_recipes("zero3,zeropp,ddp:compute=fp32"),
                model="gpt:2x256x4",
                hosts=3,
                steps=5,
            )
        )
        for measured in comparison.main.runs:
            assert measured.nic_bytes_per_rank is not None
            excess = measured.nic_bytes_per_rank / measured.across_bytes_per_rank - 1
            assert 0 < excess < HEADERS + 0.03, measured.recipe

    def test_a_thin_link_holds_up_stock_more_and_changes_no_loss(self, text: Path) -> None:
        record = Record()
        comparison = compare(
            make_request(text, link_bit_per_s=20e6, also_unshaped=True), progress=record
        )
        assert [word for word in record.told if word.endswith("shaped")] == ["shaped", "unshaped"]
        link, unshaped = comparison.main.link, comparison.unshaped
        assert link is not None
        assert link.measured_bit_per_s == pytest.approx(link.requested_bit_per_s, rel=0.1)
        assert unshaped is not None
        stock, compressed = comparison.main.runs
        # 20 Mbit/s carry stock's bytes in so long at best
        assert stock.step_s.min > 0.9 * 8 * stock.across_bytes_per_rank / 20e6
        assert compressed.step_s.median < stock.step_s.median
        for thin, free in zip(comparison.main.runs, unshaped.runs, strict=True):
            assert thin.losses == free.losses
            assert thin.validation_loss == free.validation_loss
            assert thin.across_bytes_per_rank == free.across_bytes_per_rank
        assert set(comparison.to_json()["unshaped"]) == {"link", "runs"}


@pytest.fixture
def no_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> NoReturn:
        pytest.fail("a network or a process was started")

    monkeypatch.setattr(comparing, "open_network", refuse)
    monkeypatch.setattr(comparing, "launch", refuse)


@pytest.mark.usefixtures("no_launch")
@pytest.mark.parametrize(
    ("changes", "kind", "said"),
    [
        ({"model": "nonsense"}, ConfigError, "no such file or name"),
        ({"model": "gpt:2x64x3"}, ConfigError, "do not divide"),
        ({"model": "gpt:96x12288x96"}, ConfigError, r"GB more than the [\d.]+ GB available"),
        ({"data": Path("/no/such/text")}, InputError, "cannot be read"),
        ({"data": Path("/proc/self/exe")}, InputError, "binary"),
        ({"seq_len": 100_000}, InputError, "too short"),
        ({"steps": 0}, ConfigError, "steps"),
        (
            {"recipes": parse_recipes("ddp:local_steps=50"), "steps": 5},
            ConfigError,
            "would not meet once in 5 steps; give --steps 52 or more",
        ),
        ({"learning_rate": -1.0}, ConfigError, "learning_rate"),
        ({"device": "tpu"}, ConfigError, "device"),
    ],
)
def test_what_is_wrong_is_found_before_anything_starts(
    text: Path, changes: dict[str, Any], kind: type[ThinwireError], said: str
) -> None:
    with pytest.raises(kind) as raised:
        run(make_request(text, **changes))
    assert re.search(said, str(raised.value))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"recipes": ()}, "--recipes"),
        ({"also_unshaped": True}, "--link"),
        ({"device": "cuda", "link_bit_per_s": 1e8}, "NCCL goes round"),
    ],
)
def test_options_that_contradict_are_refused(
    text: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        make_request(text, **changes)
