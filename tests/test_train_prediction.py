"""The plan's step time beside a measured one: when there is one, and for which link."""

from __future__ import annotations

from pathlib import Path

import pytest

from made_samples import LINK_BYTES_PER_S, made_samples
from thinwire.errors import ConfigError
from thinwire.lab import Layout
from thinwire.recipes import parse_recipe
from thinwire.train.calibration.calibration import CalibrationRequest, judge
from thinwire.train.compare import CompareRequest
from thinwire.train.comparison import Link
from thinwire.train.model_spec import parse_model
from thinwire.train.prediction import PlannedSteps

RATE = 8 * LINK_BYTES_PER_S
RECIPE = parse_recipe("zero3")


def hardware(folder: Path, *, hosts: int = 2, shaped: bool = True) -> Path:
    layout = Layout(hosts=hosts, ranks_per_host=1, link_bit_per_s=RATE if shaped else None)
    found = judge(
        made_samples(layout),
        CalibrationRequest(layout=layout, rounds=2),
        link_bit_per_s=RATE if shaped else None,
    )
    file = folder / f"{hosts}-{shaped}.toml"
    found.write(file)
    return file


def request(*, hosts: int = 2, link: float | None = RATE, model: str = "tiny") -> CompareRequest:
    return CompareRequest(
        recipes=(RECIPE,),
        hosts=hosts,
        ranks_per_host=1,
        link_bit_per_s=link,
        also_unshaped=False,
        model=model,
        data=None,
        seq_len=32,
        micro_batch=1,
        steps=1,
        seed=0,
        learning_rate=1e-3,
        device="cpu",
    )


def planned(file: Path, asked: CompareRequest, measured: float | None) -> float | None:
    link = None
    if measured is not None:
        link = Link(requested_bit_per_s=measured, measured_bit_per_s=measured)
    spec = parse_model(asked.model, seq_len=asked.seq_len)
    return PlannedSteps(file, asked)(RECIPE, spec, asked, link)


def test_a_slower_link_takes_longer(tmp_path: Path) -> None:
    file = hardware(tmp_path)
    fast, slow = (planned(file, request(), rate) for rate in (RATE, RATE / 4))
    assert fast is not None
    assert slow is not None
    assert slow > fast > 0


@pytest.mark.parametrize("model", ["tiny", "gpt:2x64x2", "1M"])
def test_every_way_to_name_a_model(tmp_path: Path, model: str) -> None:
    assert planned(hardware(tmp_path), request(model=model), RATE) is not None


def test_nothing_is_foretold_of_a_link_of_another_kind(tmp_path: Path) -> None:
    assert planned(hardware(tmp_path), request(link=None), None) is None
    assert planned(hardware(tmp_path, shaped=False), request(), RATE) is None
    assert planned(hardware(tmp_path, shaped=False), request(link=None), None) is not None


def test_other_hosts_share_the_machine_differently(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--hosts 3"):
        PlannedSteps(hardware(tmp_path), request(hosts=3))
