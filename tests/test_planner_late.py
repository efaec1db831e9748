"""What the planner says of late gradients: less time, more memory, the same bytes."""

from __future__ import annotations

import pytest

from planner_settings import lab_setting
from thinwire.planner.prediction import predict
from thinwire.recipes import parse_recipe


@pytest.mark.parametrize("text", ["ddp:grads=int4/128", "zero3:grads=int4/128"])
def test_the_exposed_reduction_goes_away_and_memory_grows(text: str) -> None:
    setting = lab_setting("gpt:6x512x8", hosts=4, ranks=1, tokens=64)
    in_time = predict(setting, parse_recipe(text))
    late = predict(setting, parse_recipe(f"{text}:staleness=1"))
    assert late.sent == in_time.sent
    assert late.step_s < in_time.step_s
    whole_bytes = 4 * setting.workload.num_parameters
    more_bytes = late.memory.device.buffers - in_time.memory.device.buffers
    # stage 0: the average and its slots; otherwise a shard, with the padding of short last ones
    expected = 2 * whole_bytes if text.startswith("ddp") else whole_bytes / 4
    assert more_bytes == pytest.approx(expected, rel=0.01)


def test_a_step_is_never_shorter_than_its_wire() -> None:
    setting = lab_setting("gpt:6x512x8", hosts=4, ranks=1, tokens=1)
    exact = predict(setting, parse_recipe("ddp:staleness=1"))
    assert exact.step_s >= exact.sent.total_bytes / setting.cluster.link.bytes_per_s
