"""A bisection in sentences: its outcome, the reasons of its launches, the next command."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

from perfbisect.bisect.decision.model import Comparison, Note, NoteKind, Reason, ReasonKind, SearchOutcome
from perfbisect.bisect.decision.outcome import MAX_PROBABILITY
from perfbisect.bisect.plan import BisectPlan, Position, crossings, differing
from perfbisect.bisect.result import BisectResult
from perfbisect.common.quantities import counted, minutes, percent
from perfbisect.jobs.commands import follow_up_command, git_command
from perfbisect.jobs.replay import LaunchRecord
from perfbisect.stats.ab_test import AbVerdict

_MOST_PACKAGES = 6
_MOST_LEADING = 3
_LEAST_TOLD = 0.01
"""A probability that is worth a sentence."""
_LIBRARIES = "nvidia-"
"""Packages that torch loads from its own environment: no layer takes their place."""


def reason_sentence(reason: Reason, plan: BisectPlan) -> str:
    """Why a position is launched."""
    end = f"{plan.end_name(reason.index)} end"
    known = "" if reason.none is None else f": P(no change) {reason.none:.2f}"
    sentences: Mapping[ReasonKind, str] = {
        "end round": f"{end}, round {reason.round}{known}",
        "end new to slot": f"{end}: this slot has not seen it",
        "on one machine": f"{end}: do the ends differ on this machine alone?",
        "most informative": f"most informative: {reason.bits:.2f} bits in about {minutes(reason.minutes)}",
        "pair": f"A/B of the suspect and its parent, pair {reason.round}",
        "another step": f"{' and '.join(_shorts(plan, reason.span))}: is there another step?",
        "another build": "another build beside the suspect: does it show the step, too?",
        "slow at times": "the suspect and its parent again: does it slow every launch?",
    }
    return sentences[reason.kind]


def note_sentence(note: Note, plan: BisectPlan) -> str:
    """What else a reader must know, with commits for positions."""
    shorts = _shorts(plan, note.positions)
    pair = " and ".join(shorts)
    spans = ", ".join(" to ".join(_shorts(plan, span)) for span in note.spans)
    ends = " and ".join(plan.end_name(index) for index in note.positions)
    effect = f"{note.effect or 0.0:+.1%}"
    first, last = plan.end_name(0), plan.end_name(plan.last)
    against = "better" if plan.direction == "regression" else "worse"
    steps = []
    if note.effect is not None and note.whole is not None:
        steps.append(f"the culprit's step ({effect}) is not the whole change ({note.whole:+.1%})")
    if shorts:
        steps.append(f"{', '.join(shorts)} lies at neither level")
    sentences: Mapping[NoteKind, str] = {
        "more steps": f"more than one step: {'; '.join(steps)}",
        "one build": f"one side of the step rests on one build, {pair}: another build would tell more",
        "builds differ": (
            f"{_differ(note.effect)}; with that, P is {note.probability:.2f} that {pair} made the step"
        ),
        "intermittent": f"slow in {note.slow[0]} of {note.slow[1]} launches from {pair} on",
        "one machine": f"the step was seen on {' and not on '.join(note.machines)}",
        "ends differ on one machine": (
            f"the ends differ on {note.machines[0] if note.machines else ''} alone, by {effect}; on "
            f"{', '.join(note.machines[1:])} by {note.whole or 0.0:+.1%}"
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


def _differ(sd: float | None) -> str:
    """What builds differ by; of a standard deviation that the launches do not show, that they may."""
    if sd is None:
        return "builds of this range may differ by themselves, which these launches do not rule out"
    return f"builds of this range differ by themselves, by about {sd:.1%}"


def _shorts(plan: BisectPlan, positions: Iterable[int]) -> tuple[str, ...]:
    return tuple(plan.positions[index].change.short for index in positions)


def summarize(result: BisectResult) -> Iterator[str]:
    """The result, most important first."""
    outcome, plan = result.outcome, result.plan
    if outcome is None:
        yield _unfinished(result)
    else:
        if outcome.verdict == "found":
            yield from _found(outcome, plan)
        elif outcome.verdict == "narrowed":
            yield from _narrowed(outcome, plan)
        elif outcome.verdict == "not reproduced":
            yield from _not_reproduced(outcome, plan)
        elif outcome.verdict == "too small":
            yield from _too_small(outcome, plan, result.minutes_per_launch)
        elif outcome.verdict == "gradual":
            yield from _gradual(outcome, plan)
        else:
            yield from _out_of_budget(outcome, plan, result.minutes_per_launch)
        yield from _steps(outcome, plan)
        yield from _replicated(result)
        notes = "; ".join(note_sentence(note, plan) for note in outcome.notes if note.kind != "one machine")
        if notes:
            yield f"Note: {notes}."
        if outcome.verdict == "found" and len(outcome.culprits) == 1:
            yield from _rebase(outcome.culprits[0], plan, result.records)
    yield from _revert(result)


def next_command(result: BisectResult) -> str:
    """What to do next."""
    outcome, plan = result.outcome, result.plan
    if outcome is None:
        return f"perfbisect resume {result.job.id}" + (f" --metric {plan.ref}" if result.is_recast else "")
    if result.is_on_branch:
        first, last = _shorts(plan, (0, plan.last))
        words = ("log", "--cherry-mark", "--left-only", f"{first}...{last}")
        return git_command(plan.setting.repository, *words)
    if outcome.verdict == "found":
        culprit = plan.positions[outcome.culprits[0]].change
        if culprit.kind == "release":
            return f"bisect the commits before {culprit.id}"
        return git_command(plan.setting.repository, "show", culprit.short)
    if outcome.confirmed is not None:
        return _telling_apart(outcome, plan)
    if outcome.verdict == "out of budget":
        return f"perfbisect resume {result.job.id} --budget {max(1, round(plan.budget * 2))}m"
    if outcome.verdict == "gradual":
        return "bisect with --good and --bad further apart, or compare releases: perfbisect bisect --releases"
    alone = [note.machines[0] for note in outcome.notes if note.kind == "ends differ on one machine"]
    if alone:
        return f"bisect on {alone[0]} alone, with a --fleet of no other machine"
    if outcome.verdict == "too small":
        return "make the cell quieter or longer (more prompts, a machine of its own), or widen the range"
    return (
        "check the ends with: perfbisect run CELL --at CHANGE; another cell or metric may show what was seen"
    )


def _unfinished(result: BisectResult) -> str:
    if not result.is_recast:
        measured = counted(len(result.measured), "launch")
        return f"Not finished: {measured} measured so far; there is no verdict yet."
    low, each = result.launches_left, median(launch.minutes for launch in result.measured)
    return (
        f"What was measured does not settle {result.plan.ref.metric.display}: it was chosen for another "
        f"metric. The rest would take about {low} to {3 * low} launches, {low * each:.0f} to "
        f"{3 * low * each:.0f} minutes."
    )


def _metric(plan: BisectPlan) -> str:
    statistic = f" ({plan.ref.statistic})" if plan.ref.statistic else ""
    return f"{plan.ref.metric.display}{statistic}"


def _step_direction(plan: BisectPlan) -> str:
    return "worse" if plan.direction == "regression" else "better"


def _size(comparison: Comparison | AbVerdict) -> str:
    interval = f"95 % interval {percent(comparison.low)} to {percent(comparison.high)}"
    return f"{percent(comparison.effect)} ({interval})"


def _fresh_launches(count: int) -> str:
    return f"{count} fresh launch{'' if count == 1 else 'es'}"


def _name(position: Position) -> str:
    more = len(position.changes) - 1
    return position.change.short + (f" (and {more} after it with the same environment)" if more else "")


def _found(outcome: SearchOutcome, plan: BisectPlan) -> Iterator[str]:
    positions = [plan.positions[i] for i in outcome.culprits]
    step, change = outcome.confirmed, _step_direction(plan)
    if step:
        worse = plan.ref.metric.sign * step.effect > 0
        change = f"{'worse' if worse else 'better'}: {_size(step)}"
    if len(positions) > 1:
        names = "; ".join(map(_name, positions))
        yield (
            f"One of {len(positions)} neighbouring changes made {_metric(plan)} {change}; they cannot be "
            f"distinguished, since those between them cannot be measured: {names}."
        )
    elif outcome.culprits[0] == plan.merge_base:
        yield _on_branch(plan, f"{_metric(plan)} {change}")
    else:
        yield f"{_name(positions[0])} made {_metric(plan)} {change}."
    yield f"Probability {outcome.probability:.2f}, given the model; at most 0.99."
    if step:
        parent = plan.positions[step.parent].change.short
        yield f"Confirmed against its parent {parent}: {_fresh_launches(step.launches)} a side."
    if outcome.whole and outcome.share is not None:
        ends = f"{plan.end_name(0)} to {plan.end_name(plan.last)}"
        yield (
            f"The whole change from {ends} is {_size(outcome.whole)}; "
            f"this step is {outcome.share * 100:.0f} % of it."
        )


def _on_branch(plan: BisectPlan, what: str) -> str:
    """The step is between a good end that is no ancestor of bad and where the two part."""
    assert plan.branch is not None
    first, last = _shorts(plan, (0, plan.last))
    count, shared = len(plan.branch.own), len(plan.branch.shared)
    also = f" {shared} of them, by their patch, are on the later end's line too." if shared else ""
    return (
        f"{first} is no ancestor of {last}, and the step lies between it and {plan.branch.fork.short}, where "
        f"their lines part: without what {first} has of its own ({counted(count, 'commit')}, "
        f"named in the report) {what}.{also}"
    )


def _steps(outcome: SearchOutcome, plan: BisectPlan) -> Iterator[str]:
    """The named steps, if all of them were asked for."""
    count = len(outcome.steps)
    if plan.all_steps and count:
        yield f"{counted(count, 'step')} of the range named; the largest is the verdict."
        for number, step in enumerate(outcome.steps, 1):
            culprits = " or ".join(_name(plan.positions[i]) for i in step.culprits)
            probability = f"probability {min(step.probability, 0.99):.2f}"
            yield f"Step {number}: {culprits}, {_size(step.confirmed)}, {probability}."


def _by_probability(outcome: SearchOutcome) -> list[int]:
    """The positions of a narrowed range, the likeliest first."""
    p = outcome.beliefs.p if outcome.beliefs else ()
    return sorted(outcome.culprits, key=lambda i: -p[i])


def _narrowed(outcome: SearchOutcome, plan: BisectPlan) -> Iterator[str]:
    assert outcome.beliefs is not None
    p, count = outcome.beliefs.p, len(outcome.culprits)
    names = "; ".join(
        f"{_name(plan.positions[i])} {min(p[i], MAX_PROBABILITY):.2f}" for i in _by_probability(outcome)
    )
    who = f"One of {count} changes" if count > 1 else "One change, likely and not sure enough to be named,"
    what = f"{_metric(plan)} {_step_direction(plan)}"
    yield f"{who} made {what}, with probability {outcome.probability:.2f}: {names}."
    yield from _confirmed_difference(outcome, plan)
    yield (
        "More launches of the same builds do not tell which. Reading the diffs does, or measuring the later "
        "end with one of these changes taken back."
    )


def _confirmed_difference(outcome: SearchOutcome, plan: BisectPlan) -> Iterator[str]:
    """What the A/B of a suspect showed, and how likely it is that no single change made it."""
    step = outcome.confirmed
    if step is not None and outcome.beliefs is not None:
        parent, suspect = _shorts(plan, (step.parent, step.culprit))
        yield (
            f"An A/B confirmed that {suspect} and its parent {parent} differ by {_size(step)}: "
            f"{_fresh_launches(step.launches)} a side."
        )
        neither = 1 - sum(outcome.beliefs.p)
        if neither >= _LEAST_TOLD:
            yield f"Probability that no single change did it, and builds differ by themselves: {neither:.2f}."


def _telling_apart(outcome: SearchOutcome, plan: BisectPlan) -> str:
    """The later end against itself without the likeliest change."""
    p = outcome.beliefs.p if outcome.beliefs else ()
    suspects = [i for i in range(1, plan.last + 1) if plan.positions[i].change.kind != "release"]
    last = plan.positions[-1].change.short
    if not suspects:
        first, end = min(outcome.culprits, default=1), max(outcome.culprits, default=plan.last)
        parent, latest = (plan.positions[i].change.id for i in (first - 1, end))
        return f"bisect the commits from {parent} to {latest}"
    suspect = plan.positions[max(suspects, key=lambda i: p[i])].change.short
    sides = ("--a", last, "--b", f"{last}+revert:{suspect}")
    return follow_up_command(plan.setting, "compare", plan.cell, plan.metric, *sides)


def _not_reproduced(outcome: SearchOutcome, plan: BisectPlan) -> Iterator[str]:
    first, last = _shorts(plan, (0, plan.last))
    yield (
        f"{last} is not {_step_direction(plan)} than {first} here: no difference in {_metric(plan)} was "
        "reproduced."
    )
    if outcome.whole:
        yield f"Measured: {_size(outcome.whole)} over {_fresh_launches(outcome.whole.launches)} a side."
    yield f"Probability that nothing changed: {min(outcome.probability, 0.99):.2f}."


def _too_small(outcome: SearchOutcome, plan: BisectPlan, minutes_per_launch: float) -> Iterator[str]:
    if outcome.confirmed is not None:
        yield f"Builds that differ by themselves may pass for a step in {_metric(plan)}: no commit is named."
        yield from _confirmed_difference(outcome, plan)
        return
    size = f", {_size(outcome.whole)}," if outcome.whole else ""
    yield (
        f"The difference in {_metric(plan)} between the ends{size} is too small for the noise on this "
        "machine."
    )
    if outcome.beliefs and outcome.beliefs.tau:
        yield (
            f"Launches of one change differ by {outcome.beliefs.tau * 100:.1f} %, "
            f"runs within a launch by {outcome.beliefs.sigma * 100:.1f} %."
        )
    if outcome.launches_needed:
        yield (
            f"Settling it would take about {outcome.launches_needed} launches a side, "
            f"some {2 * outcome.launches_needed * minutes_per_launch:.0f} minutes for the ends alone."
        )


def _gradual(outcome: SearchOutcome, plan: BisectPlan) -> Iterator[str]:
    ends = f"from {plan.end_name(0)} to {plan.end_name(plan.last)}"
    size = _size(outcome.whole) if outcome.whole else _step_direction(plan)
    yield f"{_metric(plan)} changes gradually {ends}: {size}. No single commit carries it."
    yield f"Probability of a slope rather than a step {outcome.probability:.2f}, given the model."


def _out_of_budget(outcome: SearchOutcome, plan: BisectPlan, minutes_per_launch: float) -> Iterator[str]:
    yield (
        f"The budget of {plan.budget:.0f} minutes does not hold another launch, and no change could be named "
        f"for {_metric(plan)}."
    )
    if outcome.culprits and outcome.beliefs and outcome.whole:
        names = "; ".join(_name(plan.positions[i]) for i in outcome.culprits[:_MOST_LEADING])
        left_out = len(outcome.culprits) - _MOST_LEADING
        more = f" and {left_out} more" if left_out > 0 else ""
        yield f"Leading with probability {outcome.probability:.2f}: {names}{more}. No verdict."
        yield (
            f"So far the ends differ by {_size(outcome.whole)}; "
            f"probability that nothing changed {min(outcome.beliefs.none, 0.99):.2f}."
        )
    if minutes_per_launch:
        yield (f"A launch takes about {minutes(minutes_per_launch)}; what was measured is kept and goes on.")


def _replicated(result: BisectResult) -> Iterator[str]:
    """On how many machines of a fleet the step was seen."""
    check = result.replication
    if len(result.machines) < 2 or not check.machine:
        return
    first, other = check.machine, " and ".join(check.others)
    size = _size(check.effect) if check.effect else ""
    stopped = f" It ended there: {check.note}." if check.note else ""
    if check.said == "holds":
        count = 1 + len(check.others)
        yield f"Holds on {count} of {count} machines: {first}, and {other} with {size}."
    elif check.said == "absent":
        yield f"Only on {first}: on {other} it was not seen, {size}."
    elif check.said == "another size":
        yield f"Confirmed on {first}; on {other} the step is of another size: {size}."
    else:
        began = f" On {other} it was not settled{f', {size}' if size else ''}.{stopped}" if other else ""
        yield f"Confirmed on one machine only: {first}.{began}"


def _revert(result: BisectResult) -> Iterator[str]:
    """How the later end compares with itself without the culprit."""
    check, plan = result.revert, result.plan
    if check.change is None:
        if check.note:
            yield f"The culprit was not taken back: {check.note}."
        return
    verdict, last = check.verdict, plan.positions[-1].change.short
    stopped = f" It ended there: {check.note}." if check.note else ""
    if verdict is None or math.isnan(verdict.effect):
        yield f"{last} with the culprit taken back: not measured to a whole block.{stopped}"
        return
    meaning = {
        "improvement": "the step is gone with it",
        "same": "taking it back changes nothing there: something else keeps the later end where it is",
        "regression": f"taking it back makes it {_step_direction(plan)} still",
        "inconclusive": "this does not settle whether the step is gone with it",
    }[verdict.word]
    yield (
        f"{last} with the culprit taken back: {_size(verdict)} over "
        f"{_fresh_launches(verdict.launches // 2)} a side: {meaning}.{stopped}"
    )


def _rebase(culprit: int, plan: BisectPlan, records: Sequence[LaunchRecord]) -> Iterator[str]:
    """That the step is a rebase, and how its packages are taken apart."""
    crossing = next((x for x in crossings(plan.positions) if x.index == culprit), None)
    if crossing is None:
        return
    rebase, parent = _shorts(plan, (crossing.index, crossing.parent))
    yield (
        f"The step is a rebase: {rebase} moves its pin of {crossing.what} from {crossing.before} to "
        f"{crossing.after}. What made it may be in {crossing.what} or in another package rather than in the "
        "commit itself."
    )
    moved = differing(_packages(records, crossing.parent), _packages(records, crossing.index))
    swaps = [(name, new) for name, _, new in moved if new and not name.startswith(_LIBRARIES)]
    if not swaps:
        return
    versions = ", ".join(
        f"{name} {old or 'none'} -> {new or 'none'}" for name, old, new in moved[:_MOST_PACKAGES]
    )
    more = f" and {len(moved) - _MOST_PACKAGES} more" if len(moved) > _MOST_PACKAGES else ""
    count = "1 package differs" if len(moved) == 1 else f"{len(moved)} packages differ"
    yield f"{count} between the two environments: {versions}{more}."
    name, version = swaps[0]
    sides = ("--a", parent, "--b", f"{parent}+pip:{name}=={version}")
    command = follow_up_command(plan.setting, "compare", plan.cell, plan.metric, *sides)
    others = ", ".join(f"+pip:{name}=={version}" for name, version in swaps[1:_MOST_PACKAGES])
    yield f"One at a time over the parent: `{command}`" + (f"; then {others}." if others else ".")


def _packages(records: Sequence[LaunchRecord], position: int) -> tuple[str, ...]:
    """The packages of a position's environment, as its attempts report them."""
    for launch in records:
        facts = launch.attempt.provenance.facts.get("engine") if launch.attempt else None
        if launch.position == position and isinstance(facts, Mapping) and facts.get("packages"):
            return tuple(str(line) for line in facts["packages"])
    return ()
