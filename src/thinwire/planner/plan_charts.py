"""Pictures of a plan: memory by term, time by part, one step as a timeline, time by bandwidth."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from thinwire.drawing import COLOURS, HATCHES, INK, LINE_STYLES, Chart, add_legend, draw, log_scales
from thinwire.planner.break_even import best_step_s, price
from thinwire.planner.prediction import Prediction, predict_timeline
from thinwire.planner.ranking import Plan
from thinwire.planner.recipe_lines import recipe_lines
from thinwire.quantities import format_bit_rate, format_bytes, format_duration

__all__ = ["left_out", "plan_charts"]

TIME_PARTS = {
    "compute_s": "compute",
    "exposed_comm_s": "network",
    "codec_s": "codec",
    "offload_s": "offload",
    "bubble_s": "bubble",
}
LANES = ("compute", "wire", "inner wire")
RATES_EACH_SIDE = 12  # of the link's own rate, in steps of a factor of the square root of 10 / 4
LABEL_WIDTH = 26  # characters of a line beside the bars
LEGEND_WIDTH = 58  # and of one above the lines
DRAWN_RECIPES = 2 * len(COLOURS)  # each colour in two styles; more lines cannot be told apart
LEGEND_ROWS = 3  # that the usual height has room for


def plan_charts(plan: Plan) -> tuple[Chart, ...]:
    """All pictures of a plan.

    Args:
        plan: with at least one prediction.
    """
    shown = plan.predictions[:DRAWN_RECIPES]
    lines = max(_label(prediction).count("\n") + 1 for prediction in plan.predictions)
    height_in = 1.2 + max(0.35, 0.15 * lines + 0.1) * len(plan.predictions)
    charts = [
        draw(
            "Memory of the worst rank by term",
            "memory",
            lambda figure, axes: _memory(plan, figure, axes),
            size_in=(4.8, height_in),
        ),
        draw(
            "Time of a step by part",
            "time",
            lambda figure, axes: _time(plan, figure, axes),
            size_in=(4.8, height_in),
        ),
        draw(
            f"Last micro-batch of {_chosen(plan).recipe.name}",
            "timeline",
            lambda _, axes: _timeline(plan, axes),
            size_in=(4.8, 2.2),
        ),
    ]
    if plan.setting.group.is_across:
        further = max(0, _legend_rows(shown) - LEGEND_ROWS)
        charts.append(
            draw(
                "Time of a step by bandwidth",
                "bandwidth",
                lambda figure, axes: _by_bandwidth(plan, shown, figure, axes),
                size_in=(4.8, 3.4 + 0.2 * further),
            )
        )
    return tuple(charts)


def left_out(plan: Plan) -> list[str]:
    """A sentence if there are more recipes than lines in the picture by bandwidth."""
    unseen = [item.recipe.name for item in plan.predictions[DRAWN_RECIPES:]]
    if not (unseen and plan.setting.group.is_across):
        return []
    return [
        f"Time by bandwidth shows the first {DRAWN_RECIPES} recipes of the table below, and leaves "
        f"out {', '.join(unseen)}."
    ]


def _chosen(plan: Plan) -> Prediction:
    return plan.choice or plan.predictions[0]


def _memory(plan: Plan, figure: Figure, axes: Axes) -> str:
    tables = [prediction.memory.device.to_json() for prediction in plan.predictions]
    terms = [term for term in tables[0] if term != "total" and any(t[term] for t in tables)]
    columns = {term.replace("_", " "): [t[term] / 1e9 for t in tables] for term in terms}
    _stacked(plan, columns, figure, axes)
    limit = plan.setting.cluster.device.memory_bytes
    if limit is not None:
        axes.axvline(limit / 1e9, color=INK, linewidth=1, linestyle="--")
        axes.annotate(
            "device",
            (limit / 1e9, 0),
            xytext=(3, 8),
            textcoords="offset points",
            fontsize=8,
        )
    axes.set_xlabel("GB")
    return _in_words(plan, [format_bytes(table["total"]) for table in tables])


def _time(plan: Plan, figure: Figure, axes: Axes) -> str:
    columns = {
        label: [getattr(prediction.time, part) for prediction in plan.predictions]
        for part, label in TIME_PARTS.items()
    }
    used = {label: values for label, values in columns.items() if any(values)}
    _stacked(plan, used, figure, axes)
    axes.set_xlabel("seconds")
    return _in_words(plan, [format_duration(item.step_s) for item in plan.predictions])


def _label(prediction: Prediction, width: int = LABEL_WIDTH) -> str:
    return recipe_lines(prediction.recipe.name, width)


def _in_seconds(time_s: float) -> str:
    """A mark of a logarithmic axis: powers of ten are round in seconds, and not in hours."""
    return f"{time_s:g} s" if 1 <= time_s < 1e6 else format_duration(time_s)


def _stacked(plan: Plan, columns: dict[str, list[float]], figure: Figure, axes: Axes) -> None:
    """Horizontal bars, one a recipe, the best on top."""
    rows = range(len(plan.predictions))
    left = [0.0] * len(plan.predictions)
    legend: list[tuple[Artist, str]] = []
    for index, (label, values) in enumerate(columns.items()):
        bars = axes.barh(
            rows,
            values,
            left=left,
            height=0.6,
            color=COLOURS[index % len(COLOURS)],
            hatch=HATCHES[index % len(HATCHES)],
        )
        legend.append((bars.patches[0], label))
        left = [start + more for start, more in zip(left, values, strict=True)]
    axes.set_yticks(rows, [_label(prediction) for prediction in plan.predictions], fontsize=8)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    add_legend(figure, legend, num_columns=3)


def _timeline(plan: Plan, axes: Axes) -> str:
    timeline = predict_timeline(plan.setting, _chosen(plan).recipe)
    used = [lane for lane in LANES if any(item.lane == lane for item in timeline.lanes)]
    for row, lane in enumerate(used):
        bars = [
            (item.start_s * 1e3, (item.end_s - item.start_s) * 1e3)
            for item in timeline.lanes
            if item.lane == lane
        ]
        axes.broken_barh(
            bars, (row - 0.3, 0.6), facecolors=COLOURS[row], edgecolors=INK, linewidth=0.2
        )
    axes.axvline(timeline.forward_s * 1e3, color=INK, linewidth=1, linestyle=":")
    axes.annotate(
        "backward",
        (timeline.forward_s * 1e3, -0.45),
        xytext=(3, 0),
        textcoords="offset points",
        fontsize=8,
    )
    axes.set_yticks(range(len(used)), used)
    axes.set_ylim(len(used) - 0.5, -0.6)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("milliseconds")
    end, forward = format_duration(timeline.end_s), format_duration(timeline.forward_s)
    return f"forward ends after {forward}, the micro-batch after {end}."


def _by_bandwidth(plan: Plan, shown: Sequence[Prediction], figure: Figure, axes: Axes) -> str:
    setting = plan.setting
    own = setting.cluster.link.bit_per_s
    rates = [own * 10 ** (index / 4) for index in range(-RATES_EACH_SIDE, RATES_EACH_SIDE + 1)]
    legend: list[tuple[Artist, str]] = []
    for index, prediction in enumerate(shown):
        priced = price(setting, [prediction.recipe])
        times = [best_step_s(setting, priced, rate) for rate in rates]
        (line,) = axes.plot(
            rates,
            times,
            color=COLOURS[index % len(COLOURS)],
            linestyle=LINE_STYLES[index // len(COLOURS)],
            linewidth=1.6,
        )
        legend.append((line, _label(prediction, LEGEND_WIDTH)))
    log_scales(axes, format_bit_rate, _in_seconds)
    axes.axvline(own, color=INK, linewidth=1, linestyle="--")
    words = f"at {format_bit_rate(own)} "
    words += ", ".join(f"{p.recipe.name} {format_duration(p.step_s)}" for p in shown)
    words += _mark_break_even(plan, rates, axes)
    axes.set_xlabel("rate of a host's link; dashed: this one")
    axes.set_ylabel("time of a step")
    add_legend(figure, legend, num_columns=_legend_columns(shown))
    return f"{words}."


def _legend_columns(shown: Sequence[Prediction]) -> int:
    """Names of a search are long: side by side they would leave the picture."""
    longest = max(len(prediction.recipe.name) for prediction in shown)
    return 2 if longest <= LABEL_WIDTH else 1


def _legend_rows(shown: Sequence[Prediction]) -> int:
    lines = sum(_label(item, LEGEND_WIDTH).count("\n") + 1 for item in shown)
    return -(-lines // _legend_columns(shown))


def _mark_break_even(plan: Plan, rates: Sequence[float], axes: Axes) -> str:
    """Mark where compression begins and ceases to pay, as far as that is in the picture."""
    crossings = () if plan.paying is None else plan.paying.crossings_bit_per_s
    recipes = [prediction.recipe for prediction in plan.predictions if prediction.fit.fits]
    words = ""
    for rate in crossings:
        if not rates[0] <= rate <= rates[-1]:
            continue
        step_s = best_step_s(plan.setting, price(plan.setting, recipes), rate)
        axes.plot([rate], [step_s], marker="o", markersize=7, color=INK, fillstyle="none")
        axes.annotate(
            f"break-even {format_bit_rate(rate)}",
            (rate, step_s),
            xytext=(6, 8),
            textcoords="offset points",
            fontsize=8,
        )
        words += f"; break-even {format_bit_rate(rate)}"
    return words


def _in_words(plan: Plan, values: Sequence[str]) -> str:
    pairs = zip(plan.predictions, values, strict=True)
    return "; ".join(f"{prediction.recipe.name} {value}" for prediction, value in pairs) + "."
