"""The lines by which a rank tells its progress."""

from __future__ import annotations

import pytest

from thinwire.train.progress import StepEvent, parse_event


@pytest.mark.parametrize("loss", [2.5, None])
def test_an_event_survives_its_line(loss: float | None) -> None:
    event = StepEvent(step=3, loss=loss, step_s=0.25)
    assert parse_event(event.to_line()) == event
    assert "\n" not in event.to_line()


@pytest.mark.parametrize("line", ["", "a warning", "3", "null", "[1]", '{"step": 1}', '{"a": 1}'])
def test_what_a_library_writes_is_no_event(line: str) -> None:
    assert parse_event(line) is None
