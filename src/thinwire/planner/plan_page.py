"""A plan as one HTML page: the reasons, the pictures, the tables, where the numbers come from."""

from __future__ import annotations

from pathlib import Path

from thinwire.page import Page
from thinwire.planner.description import number_sources
from thinwire.planner.hardware import Cluster
from thinwire.planner.plan_charts import left_out, plan_charts
from thinwire.planner.prediction import FIT_WORDS, Prediction
from thinwire.planner.ranking import Plan
from thinwire.quantities import format_bytes, format_duration

__all__ = ["render_plan_page", "write_plan_page"]


def write_plan_page(path: Path, plan: Plan) -> None:
    """Write the page, whole or not at all.

    Raises:
        InputError: the file cannot be written.
    """
    render_plan_page(plan).write(path)


def render_plan_page(plan: Plan) -> Page:
    """The page; see :func:`write_plan_page`."""
    setting = plan.setting
    cluster = setting.cluster
    page = Page(
        f"{setting.workload.name} on {cluster.hosts} x {cluster.ranks_per_host} "
        f"{cluster.device.name}, recipe by recipe"
    )
    first, *others = plan.reasons
    page.conclusion(first)
    for sentence in (*others, *setting.workload.assumptions):
        page.paragraph(sentence)
    page.figures(plan_charts(plan))
    for sentence in left_out(plan):
        page.paragraph(sentence)
    page.section("Time and traffic of one step")
    _add_times(page, plan)
    page.section("Memory of the worst rank at its worst moment")
    _add_memory(page, plan)
    page.section("Where the numbers come from")
    _add_sources(page, cluster)
    return page


def _add_times(page: Page, plan: Plan) -> None:
    page.table(
        ("recipe", "step", "compute", "network", "codec", "offload", "across", "within"),
        (
            (
                item.recipe.name,
                format_duration(item.step_s),
                format_duration(item.time.compute_s),
                *(
                    format_duration(seconds) if seconds else "-"
                    for seconds in (
                        item.time.exposed_comm_s,
                        item.time.codec_s,
                        item.time.offload_s,
                    )
                ),
                *(
                    format_bytes(size) if size else "-"
                    for size in (item.sent.across_bytes, item.sent.within_bytes)
                ),
            )
            for item in plan.predictions
        ),
    )


def _add_memory(page: Page, plan: Plan) -> None:
    terms = [term for term in plan.predictions[0].memory.device.to_json() if term != "total"]
    page.table(
        ("recipe", "fits", "moment", "total", *(term.replace("_", " ") for term in terms), "host"),
        (
            (
                item.recipe.name,
                FIT_WORDS[item.fit.verdict],
                item.memory.moment,
                *(format_bytes(size) if size else "-" for size in _sizes(item, terms)),
            )
            for item in plan.predictions
        ),
    )


def _add_sources(page: Page, cluster: Cluster) -> None:
    page.table(
        ("number", "source"),
        (
            (f"{part}: {name}", source)
            for part, sources in number_sources(cluster).items()
            for name, source in sources.items()
        ),
    )


def _sizes(prediction: Prediction, terms: list[str]) -> list[float]:
    """The total, every term, and the host's total."""
    device = prediction.memory.device.to_json()
    return [device["total"], *(device[term] for term in terms), prediction.memory.host.total]
