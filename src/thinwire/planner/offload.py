"""What offloading costs: copies between device and host, the host's update, disk.

ZeRO-Offload keeps fp32 states and the update on the host: 2M bytes of gradients go down and 2M of
parameters come up in a step, the least that any placement of the data-flow graph allows
(arXiv 2101.06840, section 3). Gradients go down while backward still runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from thinwire.planner.setting import Setting
from thinwire.planner.states import States
from thinwire.planner.workload import DTYPE_BYTES
from thinwire.recipe import Recipe

__all__ = ["OffloadTime", "arithmetic_efficiency", "offload_bytes", "offload_time"]

STATE_BYTES = 12  # fp32 parameter and two moments


@dataclass(frozen=True, slots=True)
class OffloadTime:
    """Seconds that offloading adds to one step.

    Attributes:
        down_s: gradients to the host; hidden behind backward where copies overlap.
        update_s: the host's optimizer, or the disk if that takes longer.
        up_s: parameters to the device.
        fetch_s: parameters to the device, for one gather of all of them.
    """

    down_s: float = 0.0
    update_s: float = 0.0
    up_s: float = 0.0
    fetch_s: float = 0.0


def offload_bytes(num_parameters: float, width: int = 2) -> float:
    """Bytes between device and host in a step: gradients down and parameters up."""
    return 2 * width * num_parameters


def offload_time(setting: Setting, recipe: Recipe, states: States) -> OffloadTime:
    """Seconds that the recipe's ``offload`` adds."""
    if recipe.offload == "none":
        return OffloadTime()
    cluster = setting.cluster
    one_way_s = offload_bytes(states.share_numel, DTYPE_BYTES[recipe.compute]) / 2
    one_way_s /= cluster.device.host_bytes_per_s
    of_host = cluster.ranks_per_host * states.share_numel
    update_s = of_host / cluster.host.adam_parameters_per_s
    if recipe.offload == "disk" and cluster.host.disk_bytes_per_s is not None:
        # read and written while the update runs over what was read before
        update_s = max(update_s, 2 * STATE_BYTES * of_host / cluster.host.disk_bytes_per_s)
    if recipe.offload == "states":
        return OffloadTime(down_s=one_way_s, update_s=update_s, up_s=one_way_s)
    return OffloadTime(down_s=one_way_s, update_s=update_s, fetch_s=one_way_s)


def arithmetic_efficiency(
    intensity_flop_per_byte: float, bytes_per_s: float, peak_flop_per_s: float
) -> float:
    """Share of the peak that is reached when data come in at some bandwidth and nothing is reused.

    ait * bw / (ait * bw + peak) (arXiv 2104.07857, section 4), where the intensity is seq * batch
    for parameters and gradients, a quarter of that for optimizer states, and 24 * hidden * ci for
    activation checkpoints every ci layers.
    """
    reached = intensity_flop_per_byte * bytes_per_s
    return reached / (reached + peak_flop_per_s)
