"""The outcome in sentences that a person believes: what was seen, how sure it is, what more would cost."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from perfbisect.core.bisect import Comparison, Outcome
from perfbisect.core.metric import Metric
from perfbisect.jobs.bisect_plan import BisectPlan, Position
from perfbisect.jobs.next_command import git
from perfbisect.jobs.revert import Reverted
from perfbisect.render.numbers import percent


def interval(comparison: Comparison) -> str:
    return f"95 % interval {percent(comparison.low)} to {percent(comparison.high)}"


def named(position: Position) -> str:
    """A position by its first change, and how many share its environment. No subject: others wrote it."""
    more = len(position.changes) - 1
    return position.change.short + (f" (and {more} after it with the same environment)" if more else "")


def _launches(count: int) -> str:
    return f"{count} fresh launch{'' if count == 1 else 'es'}"


def as_asked(text: str, plan: BisectPlan) -> str:
    """The core's words; where the later end is the better one, good and bad change places in them."""
    if plan.extras.find == "regression":
        return text
    swapped = {"good": "bad", "bad": "good", "better": "worse", "worse": "better"}
    return re.sub(r"\b(good|bad|better|worse)\b", lambda found: swapped[found[1]], text)


def sentences(outcome: Outcome, plan: BisectPlan, minutes_per_launch: float) -> tuple[str, ...]:
    """What is said of an outcome, most important first."""
    metric = plan.ref.metric
    label = f"{metric.display}{f' ({plan.ref.statistic})' if plan.ref.statistic else ''}"
    said = {
        "found": _found,
        "not reproduced": _not_reproduced,
        "too small": _too_small,
        "out of budget": _out_of_budget,
    }[outcome.word](outcome, plan, metric, label, minutes_per_launch)
    note = (f"Note: {_with_names(outcome.note, plan)}.",) if outcome.note else ()
    return (*said, *every_step(outcome, plan), *note)


def _with_names(note: str, plan: BisectPlan) -> str:
    """The core's note with commits where it speaks of positions."""

    def short(index: str) -> str:
        return plan.positions[int(index)].change.short

    def name(found: re.Match[str]) -> str:
        return ", ".join(short(i) for i in found[1].split(", "))

    told = re.sub(r"position (\d+(?:, \d+)*)", name, as_asked(note, plan))
    return re.sub(r"\b(\d+) to (\d+)\b", lambda found: f"{short(found[1])} to {short(found[2])}", told)


def advice(outcome: Outcome, plan: BisectPlan, job: str) -> str:
    """What to do next."""
    if outcome.word == "found":
        culprit = plan.positions[outcome.culprits[0]].change
        if outcome.culprits[0] == plan.merge_base:
            first = plan.positions[0].change.short
            sides = f"{first}...{plan.positions[-1].change.short}"
            return git(plan.setting.repository, "log", "--cherry-mark", "--left-only", sides)
        if culprit.kind == "release":
            return f"bisect the commits before {culprit.id}"
        return git(plan.setting.repository, "show", culprit.short)
    if outcome.word == "out of budget":
        return f"perfbisect resume {job} --budget {max(1, round(plan.budget * 2))}m"
    if outcome.word == "too small":
        return "make the cell quieter or longer (more prompts, a machine of its own), or widen the range"
    return (
        "check the ends with: perfbisect run CELL --at CHANGE; another cell or metric may show what was seen"
    )


def _direction(comparison: Comparison, metric: Metric) -> str:
    worse = metric.sign * comparison.effect > 0
    return "worse" if worse else "better"


def _found(outcome: Outcome, plan: BisectPlan, metric: Metric, label: str, _: float) -> Sequence[str]:
    positions = [plan.positions[i] for i in outcome.culprits]
    said: list[str] = []
    step = outcome.confirmed
    otherwise = " better" if plan.extras.find == "fix" else " worse"
    size = f" {_direction(step, metric)}: {percent(step.effect)} ({interval(step)})" if step else otherwise
    if len(positions) == 1 and outcome.culprits[0] == plan.merge_base:
        said.append(_aside(plan, f"{label}{size}"))
    elif len(positions) == 1:
        said.append(f"{named(positions[0])} made {label}{size}.")
    else:
        said.append(
            f"One of {len(positions)} neighbouring changes made {label} {size[1:]}; they cannot be told "
            "apart, since those between them cannot be measured: "
            + "; ".join(named(p) for p in positions)
            + "."
        )
    said.append(f"Probability {outcome.probability:.2f}, given the model; nothing is ever told above 0.99.")
    if step:
        parent = plan.positions[step.parent]
        said.append(f"Confirmed against its parent {parent.change.short}: {_launches(step.launches)} a side.")
    if outcome.whole and outcome.share is not None:
        said.append(
            f"The whole change from good to bad is {percent(outcome.whole.effect)} "
            f"({interval(outcome.whole)}); this step is {outcome.share * 100:.0f} % of it."
        )
    return said


def _aside(plan: BisectPlan, what: str) -> str:
    """The step is between a good end that is no ancestor of bad and where the two part."""
    assert plan.aside is not None
    first, last = plan.positions[0].change.short, plan.positions[-1].change.short
    fork, own = plan.aside.fork.short, plan.aside.own
    shared = len(plan.aside.shared)
    also = f" {shared} of them, by their patch, are on the later end's line too." if shared else ""
    return (
        f"{first} is no ancestor of {last}, and the step lies between it and {fork}, where their lines part: "
        f"without what {first} has of its own ({len(own)} commit{'' if len(own) == 1 else 's'}, named in the "
        f"report) {what}.{also}"
    )


def every_step(outcome: Outcome, plan: BisectPlan) -> tuple[str, ...]:
    """The steps that were named, where all of them were asked for."""
    count = len(outcome.steps)
    if not plan.extras.every or not count:
        return ()
    said = [f"{count} step{'' if count == 1 else 's'} of the range named; the largest is told above."]
    for number, step in enumerate(outcome.steps, 1):
        who = " or ".join(named(plan.positions[i]) for i in step.culprits)
        size = f"{percent(step.confirmed.effect)} ({interval(step.confirmed)})"
        said.append(f"Step {number}: {who}, {size}, probability {min(step.probability, 0.99):.2f}.")
    return tuple(said)


def of_revert(less: Reverted, plan: BisectPlan) -> tuple[str, ...]:
    """How the later end compares with itself less the culprit."""
    if less.change is None:
        return (f"The culprit was not taken back: {less.note}.",) if less.note else ()
    told, last = less.verdict, plan.positions[-1].change.short
    said = f"{last} with the culprit taken back"
    stopped = f" It ended there: {less.note}." if less.note else ""
    if told is None or math.isnan(told.effect):
        return (f"{said}: not measured to a whole block.{stopped}",)
    size = f"{percent(told.effect)} (95 % interval {percent(told.low)} to {percent(told.high)})"
    word = {
        "improvement": "the step is gone with it",
        "same": "taking it back changes nothing there: something else keeps the later end where it is",
        "regression": "taking it back makes it worse still",
        "inconclusive": "this does not settle whether the step is gone with it",
    }[told.word]
    word = as_asked(word, plan)
    return (f"{said}: {size} over {_launches(told.launches // 2)} a side: {word}.{stopped}",)


def _not_reproduced(
    outcome: Outcome, plan: BisectPlan, metric: Metric, label: str, _: float
) -> Sequence[str]:
    del metric
    first, last = plan.positions[0].change.short, plan.positions[-1].change.short
    word = "better" if plan.extras.find == "fix" else "worse"
    said = [f"{last} is not {word} than {first} here: no difference in {label} was reproduced."]
    if outcome.whole:
        said.append(
            f"Measured: {percent(outcome.whole.effect)} ({interval(outcome.whole)}) "
            f"over {_launches(outcome.whole.launches)} a side."
        )
    said.append(f"Probability that nothing changed: {min(outcome.probability, 0.99):.2f}.")
    return said


def _too_small(
    outcome: Outcome, plan: BisectPlan, metric: Metric, label: str, minutes_per_launch: float
) -> Sequence[str]:
    said = []
    if outcome.whole:
        said.append(
            f"The difference in {label} between the ends, {percent(outcome.whole.effect)} "
            f"({interval(outcome.whole)}), is too small for the noise on this machine."
        )
    else:
        said.append(f"The difference in {label} between the ends is too small for the noise on this machine.")
    if outcome.beliefs and outcome.beliefs.tau:
        said.append(
            f"Launches of one change differ by {outcome.beliefs.tau * 100:.1f} %, "
            f"runs within a launch by {outcome.beliefs.sigma * 100:.1f} %."
        )
    if outcome.launches_needed:
        minutes = 2 * outcome.launches_needed * minutes_per_launch
        said.append(
            f"Settling it would take about {outcome.launches_needed} launches a side, "
            f"some {minutes:.0f} minutes for the ends alone."
        )
    del metric, plan
    return said


def _out_of_budget(
    outcome: Outcome, plan: BisectPlan, metric: Metric, label: str, minutes_per_launch: float
) -> Sequence[str]:
    del metric
    said = [f"The budget of {plan.budget:.0f} minutes is spent before a change could be named for {label}."]
    if outcome.culprits and outcome.beliefs and outcome.whole:
        shown = [named(plan.positions[i]) for i in outcome.culprits[:3]]
        more = f" and {len(outcome.culprits) - 3} more" if len(outcome.culprits) > 3 else ""
        said.append(
            f"Leading with probability {outcome.probability:.2f}: {'; '.join(shown)}{more}. No verdict."
        )
        said.append(
            f"So far the ends differ by {percent(outcome.whole.effect)} ({interval(outcome.whole)}); "
            f"probability that nothing changed {min(outcome.beliefs.none, 0.99):.2f}."
        )
    if minutes_per_launch:
        said.append(
            f"A launch takes about {minutes_per_launch:.1f} minutes; what was measured is kept and goes on."
        )
    return said
