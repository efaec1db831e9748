"""Bytes of one layer while its parameters, gradients and activations come and go."""

from __future__ import annotations

from dataclasses import dataclass

from thinwire.planner.activations import LayerActivations
from thinwire.planner.setting import Setting
from thinwire.planner.traffic import LayerTraffic
from thinwire.planner.workload import DTYPE_BYTES
from thinwire.recipe import Recipe

__all__ = ["LayerMemory", "layer_memory"]

FP32_BYTES = 4
BUCKET_BYTES = 25 * 2**20  # DDP's default


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMemory:
    """Bytes of one layer of a run of ``count``.

    Attributes:
        count: layers in the run.
        gathered: its parameters in the compute dtype, beside the rank's share.
        flat_forward: the flat buffer of the gather before forward.
        flat_backward: the flat buffer of the gather before backward.
        gradients: before reduction.
        kept_gradients: of earlier micro-batches, whole, in the dtype of the reduction.
        added_gradients: of this micro-batch, on their way into kept ones.
        reduction: the flat buffer of the reduction.
        reduce_payloads: sent and received while it is reduced.
        gather_payloads: sent and received while it is gathered.
        share: the rank's share of the reduced gradients, in fp32.
        secondary: hpZ's shard within the host, from forward to backward.
        activations: of one micro-batch.
    """

    count: int
    gathered: float
    flat_forward: float
    flat_backward: float
    gradients: float
    kept_gradients: float
    added_gradients: float
    reduction: float
    reduce_payloads: float
    gather_payloads: float
    share: float
    secondary: float
    activations: LayerActivations


def layer_memory(
    traffic: LayerTraffic, setting: Setting, recipe: Recipe, activations: LayerActivations
) -> LayerMemory:
    """The bytes of one layer of a run.

    Args:
        traffic: of the layer.
        setting: decides the data-parallel group.
        recipe: decides dtypes and formats.
        activations: of the layer.
    """
    if recipe.stage == 0:
        return _replicated(traffic, setting, recipe, activations)
    layer, slot = traffic.layer, traffic.slot_numel
    group, width = setting.sharing(recipe), DTYPE_BYTES[recipe.compute]
    whole = width * group.size * slot
    reduce_dtype = recipe.grads if recipe.is_uncompressed else "fp32"
    reduce_width = DTYPE_BYTES[reduce_dtype]
    reduction = float(reduce_width * group.size * slot)
    # autograd adds one parameter's gradient at a time, FSDP2 all of a layer where dtypes differ
    widest = max((parameter.numel for parameter in layer.parameters), default=0)
    added = width * (widest if reduce_width == width else layer.numel)
    return LayerMemory(
        count=layer.count,
        gathered=float(whole),
        flat_forward=float(whole) if traffic.gathers_in_forward else 0.0,
        flat_backward=float(whole) if traffic.gathers_in_backward else 0.0,
        gradients=float(width * layer.numel),
        kept_gradients=float(reduce_width * layer.numel),
        added_gradients=float(added),
        reduction=reduction,
        reduce_payloads=max((call.payload_bytes for call in traffic.reduce), default=0.0),
        gather_payloads=max((call.payload_bytes for call in traffic.forward), default=0.0),
        share=float(FP32_BYTES * slot),
        secondary=whole / group.per_host if _is_secondary(recipe, setting) else 0.0,
        activations=activations,
    )


def _replicated(
    traffic: LayerTraffic, setting: Setting, recipe: Recipe, activations: LayerActivations
) -> LayerMemory:
    """A layer under DDP: gradients stay whole, and are reduced in DDP's own buckets."""
    layer = traffic.layer
    is_cast = recipe.compute != "fp32"
    casts = DTYPE_BYTES[recipe.compute] * layer.numel if is_cast else 0
    reduction = payloads = 0.0
    if not recipe.is_uncompressed and setting.group.size > 1 and layer.numel:
        whole = sum(run.count * run.numel for run in (setting.root(), *setting.layers()))
        widest = max(parameter.numel for parameter in layer.parameters)
        bucket_share = min(whole, max(BUCKET_BYTES // FP32_BYTES, widest)) / layer.numel
        calls = (*traffic.reduce, *traffic.outer)
        payloads = bucket_share * max(call.payload_bytes for call in calls)
        # the bucket dealt out to slots, and the rank's own slot of the sum
        slots = FP32_BYTES * layer.numel * (1 + 1 / setting.group.size)
        reduction = bucket_share * slots
    return LayerMemory(
        count=layer.count,
        gathered=float(casts),
        flat_forward=0.0,
        flat_backward=0.0,
        gradients=0.0,
        kept_gradients=0.0,
        added_gradients=0.0,
        reduction=reduction,
        reduce_payloads=payloads,
        gather_payloads=0.0,
        share=float(FP32_BYTES * layer.numel),
        secondary=0.0,
        activations=activations,
    )


def _is_secondary(recipe: Recipe, setting: Setting) -> bool:
    """Whether forward leaves a shard within the host; a host's only rank keeps all of it."""
    return recipe.replica == "host" and setting.group.per_host > 1
