"""Sentences about a bisection: its outcome, the reasons of its launches, what to do next."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from perfbisect.bisect.decision.model import Comparison, Note, NoteKind, Reason, ReasonKind, SearchOutcome
from perfbisect.bisect.plan import BisectPlan, Position
from perfbisect.bisect.revert import Reverted
from perfbisect.common.numbers import percent
from perfbisect.jobs.commands import git_command
from perfbisect.model.metric import Metric


def interval(comparison: Comparison) -> str:
    return f"95 % interval {percent(comparison.low)} to {percent(comparison.high)}"


def named(position: Position) -> str:
    """A position by its first change, and how many share its environment. No subject: others wrote it."""
    more = len(position.changes) - 1
    return position.change.short + (f" (and {more} after it with the same environment)" if more else "")


def _launches(count: int) -> str:
    return f"{count} fresh launch{'' if count == 1 else 'es'}"


def end_name(plan: BisectPlan, index: int) -> str:
    """What the user calls the end at a position: where a fix is searched, the earlier one is the bad end."""
    earlier, later = ("good", "bad") if plan.extras.direction == "regression" else ("bad", "good")
    return later if index else earlier


def _step_word(plan: BisectPlan) -> str:
    """How the later end compares with the earlier, as it was asked."""
    return "worse" if plan.extras.direction == "regression" else "better"


def _against_word(plan: BisectPlan) -> str:
    return "better" if plan.extras.direction == "regression" else "worse"


def reason_sentence(reason: Reason, plan: BisectPlan) -> str:
    """Why a position is launched."""
    end = f"{end_name(plan, reason.index)} end"
    known = "" if reason.none is None else f": P(no change) {reason.none:.2f}"
    sentences: Mapping[ReasonKind, str] = {
        "end round": f"{end}, round {reason.round}{known}",
        "end new to slot": f"{end}: this slot has not seen it",
        "most informative": (f"most informative: {reason.bits:.2f} bits in about {reason.minutes:.1f} min"),
        "pair": f"A/B of the suspect and its parent, pair {reason.round}",
        "parent before pair": "the suspect's parent, before its A/B",
        "another step": f"{' and '.join(_shorts(plan, reason.span))}: is there another step?",
    }
    return sentences[reason.kind]


def note_sentence(note: Note, plan: BisectPlan) -> str:
    """What else a reader must know, with commits for positions."""
    shorts = _shorts(plan, note.positions)
    pair = " and ".join(shorts)
    spans = ", ".join(" to ".join(_shorts(plan, span)) for span in note.spans)
    ends = " and ".join(end_name(plan, index) for index in note.positions)
    effect = f"{note.effect or 0.0:+.1%}"
    first, last = end_name(plan, 0), end_name(plan, plan.last)
    against = _against_word(plan)
    sentences: Mapping[NoteKind, str] = {
        "more steps": f"more than one step: {'; '.join(_more_steps(note, shorts))}",
        "one build": (
            f"only the {ends} end shows the step, with one build of it: rebuild its environment to be sure"
        ),
        "unstable ends": f"the {ends} end could not be served at times",
        "ends swapped": f"the {last} end is {against} than the {first} end: {effect}; are they swapped?",
        "not confirmed": (
            f"the A/B did not confirm the step at any position tried; {pair} leads with P "
            f"{note.probability:.2f}"
        ),
        "part not measurable": f"{pair} could not be searched: one of them can no longer be measured",
        "part on unlike slots": f"{pair} could not be searched: they were measured on slots of unlike speed",
        "part below noise": f"{pair} may differ by less than the noise lets see",
        "part not confirmed": f"{pair} seem to differ, but no A/B between them did",
        "part improves": f"between {pair} it gets {against}: {effect}",
        "parts unsettled": f"the budget ended before all was settled of {spans}",
    }
    return sentences[note.kind]


def _more_steps(note: Note, shorts: Sequence[str]) -> Iterator[str]:
    if note.effect is not None and note.whole is not None:
        yield f"the culprit's step ({note.effect:+.1%}) is not the whole change ({note.whole:+.1%})"
    if shorts:
        yield f"{', '.join(shorts)} lies at neither level"


def _shorts(plan: BisectPlan, positions: Iterable[int]) -> tuple[str, ...]:
    return tuple(plan.positions[index].change.short for index in positions)


def summary(outcome: SearchOutcome, plan: BisectPlan, minutes_per_launch: float) -> tuple[str, ...]:
    """What is said of an outcome, most important first."""
    metric = plan.ref.metric
    label = f"{metric.display}{f' ({plan.ref.statistic})' if plan.ref.statistic else ''}"
    said = {
        "found": _found,
        "not reproduced": _not_reproduced,
        "too small": _too_small,
        "out of budget": _out_of_budget,
    }[outcome.word](outcome, plan, metric, label, minutes_per_launch)
    notes = "; ".join(note_sentence(note, plan) for note in outcome.notes)
    return (*said, *every_step(outcome, plan), *((f"Note: {notes}.",) if notes else ()))


def advice(outcome: SearchOutcome, plan: BisectPlan, job: str) -> str:
    """What to do next."""
    if outcome.word == "found":
        culprit = plan.positions[outcome.culprits[0]].change
        if outcome.culprits[0] == plan.merge_base:
            first = plan.positions[0].change.short
            sides = f"{first}...{plan.positions[-1].change.short}"
            return git_command(plan.setting.repository, "log", "--cherry-mark", "--left-only", sides)
        if culprit.kind == "release":
            return f"bisect the commits before {culprit.id}"
        return git_command(plan.setting.repository, "show", culprit.short)
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


def _found(outcome: SearchOutcome, plan: BisectPlan, metric: Metric, label: str, _: float) -> Sequence[str]:
    positions = [plan.positions[i] for i in outcome.culprits]
    said: list[str] = []
    step = outcome.confirmed
    size = f" {_step_word(plan)}"
    if step:
        size = f" {_direction(step, metric)}: {percent(step.effect)} ({interval(step)})"
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
    said.append(f"Probability {outcome.probability:.2f}, given the model; at most 0.99.")
    if step:
        parent = plan.positions[step.parent]
        said.append(f"Confirmed against its parent {parent.change.short}: {_launches(step.launches)} a side.")
    if outcome.whole and outcome.share is not None:
        ends = f"{end_name(plan, 0)} to {end_name(plan, plan.last)}"
        said.append(
            f"The whole change from {ends} is {percent(outcome.whole.effect)} "
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


def every_step(outcome: SearchOutcome, plan: BisectPlan) -> tuple[str, ...]:
    """The steps that were named, where all of them were asked for."""
    count = len(outcome.steps)
    if not plan.extras.all_steps or not count:
        return ()
    said = [f"{count} step{'' if count == 1 else 's'} of the range named; the largest is the verdict."]
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
        "regression": f"taking it back makes it {_step_word(plan)} still",
        "inconclusive": "this does not settle whether the step is gone with it",
    }[told.word]
    return (f"{said}: {size} over {_launches(told.launches // 2)} a side: {word}.{stopped}",)


def _not_reproduced(
    outcome: SearchOutcome, plan: BisectPlan, metric: Metric, label: str, _: float
) -> Sequence[str]:
    del metric
    first, last = plan.positions[0].change.short, plan.positions[-1].change.short
    said = [f"{last} is not {_step_word(plan)} than {first} here: no difference in {label} was reproduced."]
    if outcome.whole:
        said.append(
            f"Measured: {percent(outcome.whole.effect)} ({interval(outcome.whole)}) "
            f"over {_launches(outcome.whole.launches)} a side."
        )
    said.append(f"Probability that nothing changed: {min(outcome.probability, 0.99):.2f}.")
    return said


def _too_small(
    outcome: SearchOutcome, plan: BisectPlan, metric: Metric, label: str, minutes_per_launch: float
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
    outcome: SearchOutcome, plan: BisectPlan, metric: Metric, label: str, minutes_per_launch: float
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
