"""What a rank holds from step to step: parameters, optimizer states, replica, residual.

    stage    parameters (fp32)    AdamW moments    gradients between micro-batches
    0        whole                whole            whole
    1        share                share            whole
    2, 3     share                share            share

(arXiv 1910.02054, section 5.) The paper's own layout, 16-bit parameters and gradients beside fp32
states, is :func:`published_states_bytes`.
"""

from __future__ import annotations

from dataclasses import dataclass

from thinwire.formats import parse_format
from thinwire.planner.group import Group
from thinwire.planner.memory import HostBytes
from thinwire.planner.setting import Setting
from thinwire.planner.traffic import RecipeTraffic
from thinwire.planner.workload import DTYPE_BYTES
from thinwire.recipe import Recipe

__all__ = [
    "EstimatedStates",
    "States",
    "estimated_states_bytes",
    "held_states",
    "published_states_bytes",
]

FP32_BYTES = 4
MOMENTS = 2  # AdamW's
OUTER_COPIES = 2  # of local training's outer step: anchor and momentum
PINNED_BYTES = 2 * 512 * 2**20  # two staging buffers of half a GiB a rank


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """What is held all the time, in bytes.

    Attributes:
        parameters: on the device.
        optimizer_states: on the device.
        replica: a resident one, on the device.
        residual: on the device.
        buckets: DDP's copies of all gradients, or local training's pseudo-gradient.
        host: of one host.
        share_numel: elements of the rank's own share, padding included.
        whole_numel: elements of all parameters that the rank's slice of the model has.
    """

    parameters: float
    optimizer_states: float
    replica: float
    residual: float
    buckets: float
    host: HostBytes
    share_numel: int
    whole_numel: int


def held_states(setting: Setting, recipe: Recipe, traffic: RecipeTraffic) -> States:
    """What the worst rank and its host hold from step to step."""
    group = setting.group
    whole = sum(item.layer.count * item.layer.numel for item in traffic)
    share = whole
    if recipe.stage > 0:
        share = sum(item.layer.count * item.slot_numel for item in traffic)
    width = DTYPE_BYTES[recipe.compute]
    moments = MOMENTS * parse_format(recipe.optimizer_states).wire_bytes(share)
    replica = 0.0
    if recipe.resident_format is not None and group.size > 1:
        is_split = (recipe.replica or "").startswith("host")
        kept = group.hosts if is_split else group.size
        # beside it the owner keeps the shard that it last sent, to see what changed
        replica = recipe.resident_format.bits / 8 * kept * share + FP32_BYTES * share
    residual = _residual_bytes(recipe, _encoded_numel(group, recipe, whole, share))
    buckets = float(FP32_BYTES * whole) if recipe.stage == 0 and group.size > 1 else 0.0
    if recipe.staleness and group.size > 1:
        # reduced gradients until the next step; in stage 0 also their slots while they travel
        buckets += FP32_BYTES * (2 * whole if recipe.stage == 0 else share)
    if recipe.local_steps > 1:
        # DiLoCo's anchor and its momentum; the pseudo-gradient takes the place of DDP's buckets
        moments += OUTER_COPIES * FP32_BYTES * whole
    parameters: float = FP32_BYTES * share
    ranks = setting.cluster.ranks_per_host
    host = HostBytes()
    if recipe.offload != "none":
        states = ranks * (FP32_BYTES * share + moments)
        on_disk = recipe.offload == "disk"
        offloads_parameters = recipe.offload in ("all", "disk")
        host = HostBytes(
            optimizer_states=0.0 if on_disk else states,
            gradients=ranks * FP32_BYTES * share,
            parameters=ranks * width * share if offloads_parameters else 0.0,
            pinned=ranks * PINNED_BYTES,
            disk=states if on_disk else 0.0,
        )
        # the device keeps what it computes with, unless that is fetched layer by layer too
        parameters, moments = (0.0 if offloads_parameters else float(width * share)), 0
    return States(
        parameters=parameters,
        optimizer_states=moments,
        replica=replica,
        residual=residual,
        buckets=buckets,
        host=host,
        share_numel=share,
        whole_numel=whole,
    )


def _encoded_numel(group: Group, recipe: Recipe, whole: float, share: float) -> float:
    """Elements of gradients that a rank encodes and, with feedback, keeps a residual for."""
    if group.size == 1:
        return 0.0
    if recipe.stage == 0:
        return whole * (1 + 1 / group.size)  # every slot, and the own slot of the result
    if not recipe.hybrid:
        if not recipe.reduces_within or group.per_host == 1:
            return whole
        # every slot, and in the second hop the partial sums of the own place, one for each host
        first = whole if recipe.grads_within is not None else 0.0
        return first + (share * group.hosts if group.is_across else 0.0)
    within = whole if recipe.grads_within is not None and group.per_host > 1 else 0.0
    # across hosts the own share, and the own slot of the result
    return within + (share * (1 + 1 / group.hosts) if group.is_across else 0.0)


def _residual_bytes(recipe: Recipe, numel: float) -> float:
    """Bytes of the residuals of so many elements, and of what they were before a step."""
    if not recipe.feedback:
        return 0.0
    copies = 2 if recipe.residual_undo and not recipe.staleness else 1
    return float(copies * parse_format(recipe.residual).wire_bytes(round(numel)))


def published_states_bytes(num_parameters: float, ranks: int, stage: int) -> float:
    """Bytes of model states per rank as the ZeRO paper counts them (its figure 1 and table 1).

    Two bytes for a parameter, two for its gradient, twelve for AdamW in fp32.
    """
    sharded = {0: 0, 1: 12, 2: 14, 3: 16}[stage]
    return num_parameters * (16 - sharded + sharded / ranks)


@dataclass(frozen=True, slots=True)
class EstimatedStates:
    """What a states-only estimator counts, in bytes.

    Attributes:
        device: on each device.
        host: on the host.
    """

    device: float
    host: float


def estimated_states_bytes(
    num_parameters: float, largest_layer: float, devices: int, offload: str
) -> EstimatedStates:
    """Stage 3 on one host as a widely used estimator counts it: states, and nothing else.

    It is here to say what such a figure leaves out. The factor of 1.5 on the host is its own
    allowance for buffers.

    Args:
        num_parameters: of the model.
        largest_layer: parameters of the largest layer, gathered as fp32.
        devices: on the host.
        offload: ``"all"``, ``"states"`` or ``"none"``.
    """
    gathered = 4 * largest_layer
    if offload == "all":
        return EstimatedStates(gathered, 1.5 * 18 * num_parameters)
    if offload == "states":
        device = gathered + 2 * num_parameters / devices
        return EstimatedStates(device, 1.5 * 16 * num_parameters)
    device = gathered + 18 * num_parameters / devices
    return EstimatedStates(device, 1.5 * gathered * devices)
