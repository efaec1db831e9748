"""What a step is spent on: every part is a time that a clock could show, or nothing."""

from __future__ import annotations

import dataclasses

import pytest

from thinwire.planner.candidates import named_recipes
from thinwire.planner.prediction import Prediction, predict
from thinwire.planner.request import ClusterRequest, PlanRequest

PLACES = {
    "one rank of a CPU": ClusterRequest(),
    "one rank of a GPU": ClusterRequest(device="rtx4090"),
    "one host": ClusterRequest(ranks=8, device="a100-40gb"),
    "a fast link": ClusterRequest(hosts=2, ranks=4, device="h100-80gb", link="1600gbit"),
    "a link that nothing waits for": ClusterRequest(hosts=2, device="v100-32gb", link="1e6gbit"),
}


def predictions(model: str, place: str) -> list[Prediction]:
    setting = PlanRequest(model=model, seq=512, cluster=PLACES[place]).setting()
    return [predict(setting, recipe) for recipe in named_recipes(setting)]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("model", ["gpt:2x64x2", "1.3B", "llama-2-70b", "gpt:1999x64x2"])
def test_no_part_of_a_step_is_what_rounding_leaves(model: str, place: str) -> None:
    """Sums of the same terms in other orders differ by 1e-13 of a step; nothing real is so short.

    In a tenth of a nanosecond light gets 3 cm far: no wait is that short.
    """
    for prediction in predictions(model, place):
        for part, seconds in dataclasses.asdict(prediction.time).items():
            assert seconds == 0 or seconds >= 1e-10, (prediction.recipe.name, part, seconds)


@pytest.mark.parametrize("place", ["one rank of a CPU", "one rank of a GPU"])
def test_a_rank_alone_waits_for_nobody(place: str) -> None:
    for prediction in predictions("1.3B", place):
        assert prediction.time.exposed_comm_s == 0
        assert prediction.sent.total_bytes == 0
