"""The prediction for one recipe: bytes, seconds and memory of one optimizer step.

    step = micro-batches, each a timeline of compute and wire (timeline.py)
         + what the pipeline waits for, or the wire between its stages
         + the update: on the device, or on the host with its copies

Every second belongs to exactly one part. What is not compute, offload or bubble is waiting for the
wire, shared out between wire and codec as they share the wire's lane.
"""

from __future__ import annotations

from dataclasses import dataclass

from thinwire.planner.call import Sent
from thinwire.planner.memory import Memory
from thinwire.planner.moments import predict_memory
from thinwire.planner.setting import Setting
from thinwire.planner.step import Step
from thinwire.planner.timeline import ROUNDING, MicroBatchTimeline
from thinwire.planner.traffic import recipe_traffic
from thinwire.recipe import Recipe

__all__ = [
    "FIT_WORDS",
    "Fit",
    "Prediction",
    "StepTime",
    "predict",
    "predict_timeline",
    "sent_by",
    "step_s",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of one optimizer step, and what they are spent on; the parts sum to the step.

    Attributes:
        compute_s: arithmetic, the update included where the device does it.
        exposed_comm_s: waiting for the wire.
        codec_s: waiting for encoding and decoding.
        offload_s: waiting for copies to and from the host, its update, disk.
        bubble_s: waiting for other pipeline stages.
    """

    compute_s: float
    exposed_comm_s: float
    codec_s: float
    offload_s: float
    bubble_s: float

    @property
    def step_s(self) -> float:
        """All parts together."""
        parts = (self.exposed_comm_s, self.codec_s, self.offload_s, self.bubble_s)
        return self.compute_s + sum(parts)


FIT_WORDS = {True: "yes", False: "no", None: "unknown"}  # for tables


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether a recipe's memory fits, and by how much it does not.

    Attributes:
        device_missing_bytes: above 0: too much for the device; ``None``: its memory is unknown.
        host_missing_bytes: above 0: too much for the host; ``None``: its memory is unknown.
        is_checked: whether the memory of all that the recipe fills is known.
    """

    device_missing_bytes: float | None
    host_missing_bytes: float | None
    is_checked: bool

    @property
    def fits(self) -> bool:
        """Whether nothing known is exceeded."""
        return max(self.device_missing_bytes or 0, self.host_missing_bytes or 0) <= 0

    @property
    def verdict(self) -> bool | None:
        """Whether it fits; ``None``: nothing known is exceeded, yet not all is known."""
        return self.fits if self.is_checked or not self.fits else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What one recipe is predicted to need in one setting.

    Attributes:
        recipe: the recipe.
        time: of one optimizer step.
        sent: bytes of one optimizer step, by the rank that sends most.
        memory: of the worst rank, and of one host.
        fit: whether that is there.
    """

    recipe: Recipe
    time: StepTime
    sent: Sent
    memory: Memory
    fit: Fit

    @property
    def step_s(self) -> float:
        """Seconds of one optimizer step."""
        return self.time.step_s


def predict(setting: Setting, recipe: Recipe) -> Prediction:
    """What a recipe needs in a setting.

    Raises:
        ConfigError: the device cannot compute in the recipe's dtype.
    """
    traffic = recipe_traffic(setting, recipe)
    step = Step(setting, recipe, traffic)
    memory = predict_memory(setting, recipe, traffic)
    return Prediction(
        recipe=recipe,
        time=_time(step),
        sent=_most_sent(setting, recipe, step),
        memory=memory,
        fit=_fit(setting, memory),
    )


def sent_by(setting: Setting, recipe: Recipe, rank: int) -> Sent:
    """What one data-parallel rank's ledger counts in a step.

    The ledger rounds a stock all-reduce bucket by bucket: where W does not divide DDP's buckets,
    it may be off by half a byte for each.
    """
    return Step(setting, recipe, recipe_traffic(setting, recipe, rank)).sent()


def _most_sent(setting: Setting, recipe: Recipe, of_last: Step) -> Sent:
    """What the rank sends that sends most: the first, which holds most, or the last.

    An exchange has the rank with the shortest slot send most, a delta or a gather in rounds the
    one with the longest;
    and in a ring the last rank of a host sends across.
    """
    candidates = [of_last.sent()]
    if recipe.resident_format is not None or recipe.stage == 0 or recipe.hybrid:
        candidates.append(sent_by(setting, recipe, 0))
    return max(candidates, key=lambda sent: (sent.total_bytes, sent.across_bytes))


def step_s(setting: Setting, recipe: Recipe) -> float:
    """Seconds of one optimizer step, without the rest of the prediction."""
    return Step(setting, recipe, recipe_traffic(setting, recipe)).end_s()


def _time(step: Step) -> StepTime:
    compute_s = step.compute_s()
    offload_s = step.offload_s()
    bubble_s = step.bubble_s()
    end_s = step.end_s()
    waiting_s = end_s - compute_s - offload_s - bubble_s
    if waiting_s < ROUNDING * end_s:  # equal sums, added up in different orders
        waiting_s = 0.0
    wire_s, codec_s = step.wire_s(), step.codec_s()
    share = codec_s / (wire_s + codec_s) if codec_s else 0.0
    return StepTime(
        compute_s=compute_s,
        exposed_comm_s=waiting_s * (1 - share),
        codec_s=waiting_s * share,
        offload_s=offload_s,
        bubble_s=bubble_s,
    )


def predict_timeline(setting: Setting, recipe: Recipe) -> MicroBatchTimeline:
    """The last micro-batch with every layer, for a picture."""
    return Step(setting, recipe, recipe_traffic(setting, recipe)).drawn()


def _fit(setting: Setting, memory: Memory) -> Fit:
    cluster = setting.cluster
    host_bytes = memory.host.total
    knows_host = cluster.host.memory_bytes is not None
    knows_device = cluster.device.memory_bytes is not None
    if cluster.device.kind == "cpu":
        host_bytes += cluster.ranks_per_host * memory.device.total
        knows_device = knows_device or knows_host  # it computes in the host's memory
    return Fit(
        device_missing_bytes=_missing(memory.device.total, cluster.device.memory_bytes),
        host_missing_bytes=_missing(host_bytes, cluster.host.memory_bytes),
        is_checked=knows_device and (knows_host or not memory.host.total),
    )


def _missing(needed: float, available: float | None) -> float | None:
    return None if available is None else needed - available
