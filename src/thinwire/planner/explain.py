"""A plan in sentences: the choice, what decides it, what would change it, how sure it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from thinwire.planner.break_even import BESIDE, SURE, TIE, PayingRates
from thinwire.planner.candidates import sends_fewer_bits
from thinwire.planner.padding import padding_reasons
from thinwire.planner.prediction import Fit, Prediction, predict, step_s
from thinwire.planner.setting import Setting
from thinwire.planner.trust import beyond_scope, confidence
from thinwire.planner.value_form import LARGEST
from thinwire.planner.workload import DTYPE_BYTES
from thinwire.quantities import format_bit_rate, format_bytes, format_duration
from thinwire.recipe import Recipe

__all__ = ["explain", "sensitivities"]

NAMED_TOO_LARGE = 3  # the fastest; the tables have the others
FAR = 10.0  # times a rate: an error of a plan does not reach from there
PARTS = {
    "compute_s": "computing",
    "exposed_comm_s": "waiting for the network",
    "codec_s": "encoding and decoding",
    "offload_s": "offloading",
    "bubble_s": "waiting for other pipeline stages",
}


def explain(
    setting: Setting,
    predictions: tuple[Sequence[Prediction], Sequence[Prediction]],
    cheapest: Prediction | None,
    paying: PayingRates | None,
    *,
    limit: int | None = None,
) -> tuple[str, ...]:
    """The reasons of a plan.

    Args:
        setting: workload and cluster.
        predictions: the recipes that fit, best first, and those that do not.
        cheapest: when none fits, the fastest change that does.
        paying: at which rates compression pays.
        limit: name no more recipes than this; ``None``: all.
    """
    fitting, failing = predictions
    sentences = []
    if fitting:
        sentences.append(_choice(fitting))
        sentences.append(_dominant(setting, fitting[0]))
        sentences.append(_compression(setting, fitting, paying))
        sentences.extend(_doubtful(setting, paying))
        sentences.append(_what_helps(setting, fitting[0]))
    else:
        sentences.append(_nothing_fits(failing, cheapest))
    if fitting and failing:
        named = failing[:NAMED_TOO_LARGE][:limit]
        left_out = "; ".join(f"{item.recipe.name} by {_missing(item.fit)}" for item in named)
        if len(named) < len(failing):
            left_out += f"; and {len(failing) - len(named)} more"
        sentences.append(f"Too large for the memory there is: {left_out}.")
    shown = [item.recipe for item in (*fitting[:limit], *failing[:limit])]
    sentences.extend(padding_reasons(setting, shown))
    sentences.extend(_checkpoint(setting))
    sentences.extend(_unknown(setting))
    sentences.extend(_bounds(shown))
    sentences.extend(beyond_scope(setting.cluster))
    sentences.append(confidence(setting.cluster))
    return tuple(sentences)


def sensitivities(setting: Setting, prediction: Prediction) -> dict[str, float]:
    """How much longer or shorter the step gets by one change, as a ratio, by the change's name.

    A batch that does not fit, or is beyond what a plan takes, is no change to speak of.
    """
    recipe, cluster = prediction.recipe, setting.cluster
    link = cluster.link
    shorter = replace(link, latency_s=link.latency_s / 2)
    clusters = {
        "twice the bandwidth": cluster.with_link(2 * link.bit_per_s),
        "half the latency": replace(cluster, link=shorter),
        "devices twice as fast": cluster.with_compute_scale(2.0),
    }
    ratios = {
        name: step_s(replace(setting, cluster=changed), recipe) / prediction.step_s
        for name, changed in clusters.items()
    }
    batches = {"micro-batch": (2, 1), "accumulation": (1, 2)}
    for name, (sequences, times) in batches.items():
        micro_batch, accumulate = sequences * setting.micro_batch, times * setting.accumulate
        if max(micro_batch, accumulate) > LARGEST:
            continue
        larger = predict(replace(setting, micro_batch=micro_batch, accumulate=accumulate), recipe)
        if larger.fit.fits:
            ratios[f"twice the {name}, per sequence"] = larger.step_s / 2 / prediction.step_s
    return ratios


def _choice(fitting: Sequence[Prediction]) -> str:
    best = fitting[0]
    text = f"{best.recipe.name} takes {format_duration(best.step_s)} a step"
    if len(fitting) == 1:
        return f"{text}, and is the only recipe that fits."
    second = fitting[1]
    more = second.step_s / best.step_s - 1
    if abs(more) < 0.01:
        return (
            f"{text}; {second.recipe.name} takes as long within 1 %, and strays as much or "
            "more from plain training."
        )
    return f"{text}, the next best, {second.recipe.name}, {more:.0%} more."


def _dominant(setting: Setting, best: Prediction) -> str:
    part, seconds = max(
        ((name, getattr(best.time, name)) for name in PARTS), key=lambda pair: pair[1]
    )
    text = f"{seconds / best.step_s:.0%} of the step is {PARTS[part]}"
    if part != "exposed_comm_s":
        return f"{text}."
    if best.sent.across_bytes:
        sent = format_bytes(best.sent.across_bytes)
        rate = format_bit_rate(setting.cluster.link.bit_per_s)
        return f"{text}: {sent} leave the busiest rank for other hosts, over {rate} a host."
    return f"{text}: {format_bytes(best.sent.within_bytes)} leave the busiest rank."


def _compression(
    setting: Setting, fitting: Sequence[Prediction], paying: PayingRates | None
) -> str:
    compressed = [item.step_s for item in fitting if sends_fewer_bits(item.recipe)]
    others = [item.step_s for item in fitting if not sends_fewer_bits(item.recipe)]
    if setting.cluster.hosts == 1:
        return "All ranks share one host, so nothing crosses the link."
    if not setting.group.is_across:
        return (
            "The ranks that share parameters share a host, so no weights or gradients cross the "
            "link, only what pipeline stages hand on."
        )
    if paying is None:
        side = "uncompressed" if others else "compressed"
        return f"Only {side} recipes were compared, so there is no break-even bandwidth."
    gain = min(others) / min(compressed)
    if paying.pays_slowest is None:
        return f"Among these recipes compression changes no step by {TIE:.0%}, at any bandwidth."
    here = f"at this one by {max(gain, 1 / gain):.2f} times"
    if max(gain, 1 / gain) <= 1 + TIE:
        here = f"at this one neither makes a step {TIE:.0%} shorter"
    if not paying.crossings_bit_per_s:
        verdict = "pays" if paying.pays_slowest else "loses"
        return f"Among these recipes compression {verdict} at any bandwidth; {here}."
    where = " and ".join(_interval(low, high) for low, high in paying.intervals())
    if gain >= 1 or max(gain, 1 / gain) <= 1 + TIE:
        return f"Compression pays {where} a host; {here.replace('this one', 'this bandwidth')}."
    return f"Compression loses here, by {1 / gain:.2f} times: it pays only {where} a host."


def _doubtful(setting: Setting, paying: PayingRates | None) -> list[str]:
    """Says so where the nearest break-even is within what a plan is sure of."""
    own = setting.cluster.link.bit_per_s
    nearest = None if paying is None else paying.nearest(own)
    if paying is None or nearest is None or paying.margin_of(nearest) >= SURE:
        return []
    if not own / FAR <= nearest <= own * FAR:
        return []  # this link is on one side in any case
    return [
        f"The break-even at {format_bit_rate(nearest)} is not sharp: {BESIDE:.0%} below or above, "
        f"compression makes a difference of {paying.margin_of(nearest):.1%} of a step, and plans "
        f"are right to about {SURE:.0%}; where it matters, measure with thinwire compare."
    ]


def _interval(low_bit_per_s: float, high_bit_per_s: float) -> str:
    if low_bit_per_s == 0:
        return f"below {format_bit_rate(high_bit_per_s)}"
    if math.isinf(high_bit_per_s):
        return f"above {format_bit_rate(low_bit_per_s)}"
    return f"from {format_bit_rate(low_bit_per_s)} to {format_bit_rate(high_bit_per_s)}"


def _what_helps(setting: Setting, best: Prediction) -> str:
    ratios = sorted(sensitivities(setting, best).items(), key=lambda pair: pair[1])
    helpful = [f"{name} would save {1 - ratio:.0%}" for name, ratio in ratios[:2] if ratio < 0.98]
    if not helpful:
        return "No single change of network, device or batch would save 2 % of the step."
    return f"What would help: {', '.join(helpful)}."


def _nothing_fits(failing: Sequence[Prediction], cheapest: Prediction | None) -> str:
    nearest = min(failing, key=lambda item: _missing_bytes(item.fit))
    text = f"Nothing fits: the smallest, {nearest.recipe.name}, is too large by "
    text += f"{_missing(nearest.fit)}, {_largest_terms(nearest)}"
    if cheapest is None:
        return f"{text}. Use more ranks, or a smaller model, sequence or micro-batch."
    duration = format_duration(cheapest.step_s)
    return f"{text}. The cheapest change that fits is {cheapest.recipe.name}: {duration} a step."


def _largest_terms(prediction: Prediction) -> str:
    table = prediction.memory.device.to_json()
    table.pop("total")
    terms = sorted(table.items(), key=lambda pair: -pair[1])[:2]
    words = " and ".join(
        f"{format_bytes(size)} of {name.replace('_', ' ')}" for name, size in terms
    )
    return f"most of it {words}"


def _missing_bytes(fit: Fit) -> float:
    return max(fit.device_missing_bytes or 0.0, fit.host_missing_bytes or 0.0)


def _missing(fit: Fit) -> str:
    device, host = fit.device_missing_bytes or 0.0, fit.host_missing_bytes or 0.0
    where = "the device" if device >= host else "the host"
    return f"{format_bytes(max(device, host))} on {where}"


def _checkpoint(setting: Setting) -> list[str]:
    """What becomes of a checkpoint that has half the bits that training keeps."""
    workload = setting.workload
    if workload.dtype == "fp32":
        return []
    stored = format_bytes(workload.num_parameters * DTYPE_BYTES[workload.dtype])
    trained = format_bytes(workload.num_parameters * DTYPE_BYTES["fp32"])
    return [
        f"The checkpoint's parameters are {workload.dtype}, {stored}; they are planned as fp32, "
        f"{trained} over the ranks that share them, as an optimizer needs them: load them so."
    ]


def _unknown(setting: Setting) -> list[str]:
    sentences = []
    device, host = setting.cluster.device, setting.cluster.host
    if device.memory_bytes is None and host.memory_bytes is None:
        sentences.append(
            "The memory is unknown, so it was not checked whether anything fits; give --memory or "
            "--host-memory."
        )
    elif host.memory_bytes is None:
        sentences.append(
            "The host's memory is unknown, so offloading was not checked against it; give "
            "--host-memory."
        )
    return sentences


def _bounds(recipes: Sequence[Recipe]) -> list[str]:
    """What is priced at a bound, or in the steady step only."""
    sentences = []
    adaptive = ", ".join(recipe.name for recipe in recipes if recipe.adapts)
    if adaptive:
        sentences.append(
            f"Bits that adapt to gradients are priced at the most they may take: {adaptive}."
        )
    warmed = ", ".join(recipe.name for recipe in recipes if recipe.warmup_steps)
    if warmed:
        sentences.append(f"Warm-up is not priced, only the steps after it: {warmed}.")
    return sentences
