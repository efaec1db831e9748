"""Whether a recipe pays, said in words from what was measured.

Each recipe is held against the first one. Nothing here knows what a recipe is: the same figures
give the same words.
"""

from __future__ import annotations

from dataclasses import dataclass

from thinwire.quantities import format_bit_rate, format_bytes, format_duration
from thinwire.train.comparison import Run, Setting

__all__ = ["Verdict", "conclude", "judge"]

# Medians of two runs with the same recipe differ by up to 10 % on a machine that is not kept idle.
NOISE = 0.10

# Below this share of the step the link is not what the step waits for.
COMPUTE_BOUND = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came of one recipe, held against the first one of the same setting.

    Attributes:
        recipe: its name.
        pays: faster by more than noise; ``None`` for the first recipe itself, and where the
            difference is within noise.
        text: one or two sentences.
    """

    recipe: str
    pays: bool | None
    text: str


def judge(setting: Setting) -> tuple[Verdict, ...]:
    """A verdict for every run of a setting, in order."""
    first, *others = setting.runs
    own = Verdict(recipe=first.recipe, pays=None, text=_describe_first(setting, first))
    return (own, *(_judge_run(setting, first, run) for run in others))


def conclude(setting: Setting) -> str:
    """One sentence on a whole setting: which recipes pay in it, and which do not."""
    where = (
        "Without a shaped link"
        if setting.link is None
        else f"Over a link of {format_bit_rate(setting.link.requested_bit_per_s)}"
    )
    first, *others = zip(setting.runs, judge(setting), strict=True)
    if not others:
        return f"{where} there is one recipe, and nothing to hold it against."
    baseline = first[0].step_s.median
    groups = {True: "pays: {}", False: "does not pay: {}", None: "makes no difference: {}"}
    parts = []
    for pays, words in groups.items():
        members = [
            f"{run.recipe} ({baseline / run.step_s.median:.2g}x)"
            for run, verdict in others
            if verdict.pays is pays
        ]
        if members:
            parts.append(words.format(", ".join(members)))
    return f"{where}, against {first[0].recipe}: {'; '.join(parts)}."


def _judge_run(setting: Setting, first: Run, run: Run) -> Verdict:
    speedup = first.step_s.median / run.step_s.median
    if _in_each_others_range(first, run):
        pays, words = None, "makes no difference in time here"
    elif speedup > 1 + NOISE:
        pays, words = True, f"pays: a step is {speedup:.1f} times faster"
    elif speedup < 1 / (1 + NOISE):
        pays, words = False, f"does not pay here: a step takes {1 / speedup:.1f} times as long"
    else:
        pays, words = None, "makes no difference in time here"
    times = f"{format_duration(run.step_s.median)} against {format_duration(first.step_s.median)}"
    parts = [f"{words} ({times})", _compare_bytes(first, run), _compare_loss(first, run)]
    text = ", ".join(part for part in parts if part) + "."
    if pays is not True and run.sent_bytes_per_rank < first.sent_bytes_per_rank:
        text += f" {_why_not(setting, first)}"
    if run.skipped_steps:
        text += f" {run.skipped_steps} steps were skipped: a gradient was not finite."
    return Verdict(recipe=run.recipe, pays=pays, text=text)


def _in_each_others_range(first: Run, run: Run) -> bool:
    """Whether each median may as well be a step of the other: scattered steps tell little."""
    one, other = first.step_s, run.step_s
    return one.min <= other.median <= one.max and other.min <= one.median <= other.max


def _describe_first(setting: Setting, run: Run) -> str:
    text = (
        f"is what the others are held against: {format_duration(run.step_s.median)} a step, "
        f"{format_bytes(run.sent_bytes_per_rank)} sent per rank"
    )
    share = _wire_share(setting, run)
    if share is None:
        return f"{text}."
    return f"{text}; the link alone needs {100 * share:.0f} % of that time for them."


def _compare_bytes(first: Run, run: Run) -> str:
    before, after = first.sent_bytes_per_rank, run.sent_bytes_per_rank
    if before == after:
        return "sends as many bytes"
    if after < before:
        return f"sends {before / after:.1f} times fewer bytes" if after else "sends nothing"
    return f"sends {after / before:.1f} times as many bytes" if before else "sends bytes at all"


def _compare_loss(first: Run, run: Run) -> str:
    if run.validation_loss is None:
        return "and its validation loss is not finite"
    if first.validation_loss is None:
        return "and its validation loss is finite, unlike the first one's"
    change = run.validation_loss / first.validation_loss - 1
    return f"and its validation loss differs by {100 * change:+.2f} %"


def _why_not(setting: Setting, first: Run) -> str:
    """Why fewer bytes did not make the steps faster."""
    share = _wire_share(setting, first)
    if share is None:
        return (
            "No link holds the bytes back here: the time goes into computing and coding, "
            "which fewer bytes do not shorten."
        )
    if share < COMPUTE_BOUND:
        return (
            f"The setting is compute-bound: the link alone needs {100 * share:.0f} % of a step of "
            f"{first.recipe}, so fewer bytes save less than coding them costs."
        )
    return (
        f"The link alone needs {100 * share:.0f} % of a step of {first.recipe}, yet what fewer "
        "bytes save is lost again in coding, or in an exchange that does not fill the link."
    )


def _wire_share(setting: Setting, run: Run) -> float | None:
    """The share of a step in which the shaped link, always full, carries what a host sends."""
    across_bytes_per_host = setting.ranks_per_host * run.across_bytes_per_rank
    if setting.link is None or across_bytes_per_host == 0:
        return None
    return 8 * across_bytes_per_host / setting.link.measured_bit_per_s / run.step_s.median
