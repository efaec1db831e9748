"""Whether a recipe pays, said in words from what was measured.

Each recipe is held against the first one. Nothing here knows what a recipe is: the same figures
give the same words.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from thinwire.quantities import format_bit_rate, format_bytes, format_duration
from thinwire.train.comparison import Run, Setting

__all__ = ["Outcome", "Verdict", "conclude", "judge"]

# Medians of two runs with the same recipe differ by up to 10 % on a machine that is not kept idle.
NOISE = 0.10

# How far validation losses of one training are apart for no reason but rounding: gathering weights
# in bf16 alone moved single seeds by up to 0.7 % (benchmarks/loss).
LOSS_NOISE = 0.01

# Below this share of the step the link is not what the step waits for.
COMPUTE_BOUND = 0.5

# Of fewer a median leaves out no outlier.
FEWEST_MEASURED = 3


class Outcome(enum.Enum):
    """What came of a recipe, with the words of a conclusion."""

    PAYS = "pays"
    COSTS_LOSS = "is faster at a higher loss"
    DIVERGES = "does not pay, for its loss is not finite"
    SKIPS = "cannot be judged, for steps were skipped"
    LOSES = "does not pay"
    EVEN = "makes no difference"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came of one recipe, held against the first one of the same setting.

    Attributes:
        recipe: its name.
        outcome: ``None`` for the first recipe itself.
        text: one or two sentences.
    """

    recipe: str
    outcome: Outcome | None
    text: str


def judge(setting: Setting) -> tuple[Verdict, ...]:
    """A verdict for every run of a setting, in order."""
    first, *others = setting.runs
    own = Verdict(recipe=first.recipe, outcome=None, text=_describe_first(setting, first))
    return (own, *(_judge_run(setting, first, run) for run in others))


def conclude(setting: Setting) -> str:
    """One or two sentences on a whole setting: which recipes pay in it, and which do not."""
    where = (
        "Without a shaped link"
        if setting.link is None
        else f"Over a link of {format_bit_rate(setting.link.requested_bit_per_s)}"
    )
    first, *others = zip(setting.runs, judge(setting), strict=True)
    if not others:
        return f"{where} there is one recipe, and nothing to hold it against."
    baseline = first[0].step_s.median
    parts = []
    for outcome in Outcome:
        members = [
            f"{run.recipe} ({baseline / run.step_s.median:.2g}x)"
            for run, verdict in others
            if verdict.outcome is outcome
        ]
        if members:
            parts.append(f"{outcome.value}: {', '.join(members)}")
    text = f"{where}, against {first[0].recipe}: {'; '.join(parts)}."
    measured = min(run.measured for run in setting.runs)
    if measured < FEWEST_MEASURED:
        times = "once" if measured == 1 else "twice"
        text += f" Measured {times} only: give more --steps to be sure."
    return text


def _judge_run(setting: Setting, first: Run, run: Run) -> Verdict:
    speedup, pace, outcome = _speedup(first, run), _pace(first, run), _outcome(first, run)
    if pace > 0:
        gain = "pays" if outcome is Outcome.PAYS else "is faster"
        words = f"{gain}: a step is {speedup:.1f} times faster"
    elif pace < 0:
        words = f"does not pay here: a step takes {1 / speedup:.1f} times as long"
    else:
        words = "makes no difference in time here"
    times = f"{format_duration(run.step_s.median)} against {format_duration(first.step_s.median)}"
    parts = [f"{words} ({times})", _compare_bytes(first, run), _compare_loss(first, run)]
    text = ", ".join(part for part in parts if part) + "."
    if speedup <= 1 and run.sent_bytes_per_rank < first.sent_bytes_per_rank:
        text += f" {_why_not(setting, first)}"
    if _raises_loss(first, run):
        text += " That is more than rounding alone does: see what more steps make of it."
    if run.skipped_steps:
        text += f" {run.skipped_steps} steps were skipped: a gradient was not finite."
    return Verdict(recipe=run.recipe, outcome=outcome, text=text)


def _outcome(first: Run, run: Run) -> Outcome:
    if run.validation_loss is None:
        return Outcome.DIVERGES
    if run.skipped_steps or first.skipped_steps:
        # a step that is not taken changes no weight, and deltas of nothing are not sent
        return Outcome.SKIPS
    pace, raises_loss = _pace(first, run), _raises_loss(first, run)
    if pace > 0:
        return Outcome.COSTS_LOSS if raises_loss else Outcome.PAYS
    return Outcome.LOSES if pace < 0 or raises_loss else Outcome.EVEN


def _speedup(first: Run, run: Run) -> float:
    return first.step_s.median / run.step_s.median


def _pace(first: Run, run: Run) -> int:
    """1 where a step is faster by more than noise, -1 where it is slower, else 0."""
    one, other = first.step_s, run.step_s
    # scattered steps tell little: each median may as well be a step of the other run
    if one.min <= other.median <= one.max and other.min <= one.median <= other.max:
        return 0
    speedup = _speedup(first, run)
    return (speedup > 1 + NOISE) - (speedup < 1 / (1 + NOISE))


def _raises_loss(first: Run, run: Run) -> bool:
    """Whether both losses are finite and this one is higher by more than noise."""
    if first.validation_loss is None or run.validation_loss is None:
        return False
    return run.validation_loss > (1 + LOSS_NOISE) * first.validation_loss


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
