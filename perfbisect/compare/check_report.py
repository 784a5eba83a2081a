"""The document of a check against a known level, from its journal alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

from perfbisect.common.numbers import minutes, percent, with_unit
from perfbisect.compare.check_documents import (
    CheckedDocument,
    CheckWord,
    GuardLevelDocument,
    RecordedDocument,
)
from perfbisect.compare.check_plan import CheckPlan, Recorded, dependencies_differ
from perfbisect.compare.report import number
from perfbisect.compare.sides import in_turn
from perfbisect.jobs.documents import (
    cell_document,
    change_document,
    commands_document,
    launch_document,
    metric_document,
    minutes_document,
    versions,
)
from perfbisect.jobs.folders import Job, finished
from perfbisect.jobs.guards import watched
from perfbisect.jobs.journal import Event
from perfbisect.jobs.next_command import again, following
from perfbisect.jobs.plans import cell_of, require_plan
from perfbisect.jobs.replay import Launch, launches, saved
from perfbisect.model.cell import Cell
from perfbisect.model.metric import MetricRef
from perfbisect.stats import threshold
from perfbisect.stats.two_sample import Scale

_WORDS: dict[threshold.Word, CheckWord] = {
    "beyond": "failed",
    "within": "passed",
    "inconclusive": "inconclusive",
}


def told_of(plan: CheckPlan, made: Sequence[Launch]) -> threshold.Told:
    """What the launches say of the metric. :raises KeyError: one does not report it."""
    return threshold.judge(plan.line, _levels(plan.ref, made), plan.launches)


def guards_told(
    plan: CheckPlan, cell: Cell, made: Sequence[Launch]
) -> Iterator[tuple[MetricRef, threshold.Told]]:
    """What the launches say of each guard, where a baseline has it and every launch reports it.

    One that was the same in every launch, then and now, did not move, however few they are.
    """
    if plan.how != "baseline":
        return
    for guard in watched(cell):
        try:
            line, now = plan.guard_line(guard), _levels(guard, made)
            if line is None:
                continue
            told = threshold.judge(line, now, plan.launches)
            before = plan.recorded[0].values(guard)
            after = [v for x in made if x.attempt is not None for v in x.attempt.values(guard)]
            still = len({v for values in before for v in values} | set(after)) == 1
            yield guard, replace(told, word="within") if still and not math.isnan(told.over) else told
        except (KeyError, ValueError):
            continue


def check_document(job: Job, events: Sequence[Event]) -> CheckedDocument:
    """What is known of a check. :raises UsageError: the journal holds none that can be read."""
    plan = require_plan(job, events, CheckPlan)
    seen, cell, scale = launches(events), cell_of(plan), Scale.of(plan.ref.metric)
    made = in_turn(seen)
    told, guards = told_of(plan, made), tuple(guards_told(plan, cell, made))
    moved = any(guard.word == "beyond" for _, guard in guards)
    room = scale.worse_by(plan.fail_over)
    effect, *ends = (scale.effect(x + room) for x in (told.over, told.low, told.high))
    low, high = sorted(ends)
    word: CheckWord = "failed" if moved else _WORDS[told.word]
    attempts = [x.attempt for x in made if x.attempt is not None]
    return CheckedDocument(
        job=job.id,
        finished=finished(events),
        word=word,
        how=plan.how,
        limit=plan.fail_over,
        sentences=tuple(_sentences(plan, cell, made, seen, told, guards)),
        next=_next(plan, job, word, finished(events)),
        effect=number(effect),
        low=number(low),
        high=number(high),
        value=_value(plan.line, told, scale, _levels(plan.ref, made)),
        line=scale.value(plan.line.at),
        change=change_document(plan.change),
        metric=metric_document(plan.ref),
        cell=cell_document(cell, plan.ref),
        recorded=recorded_documents(plan),
        guards=tuple(_guard(plan, guard, one, made) for guard, one in guards),
        launches=tuple(launch_document(x, plan.change, plan.ref) for x in seen),
        minutes=minutes_document(seen, plan.budget, saved(events, seen)),
        reproduce=commands_document(cell, plan.setting, plan.change, attempts[-1] if attempts else None),
        versions=versions(plan.setting, seen),
        told=plan.told,
        folder=str(job.path),
    )


def recorded_documents(plan: CheckPlan) -> tuple[RecordedDocument, ...]:
    """The levels that a check rests on."""
    return tuple(recorded_document(one, plan.ref) for one in plan.recorded)


def recorded_document(one: Recorded, metric: MetricRef) -> RecordedDocument:
    """A recorded level as documents have it."""
    scale = Scale.of(metric.metric)
    levels = [scale.level(values) for values in one.values(metric)]
    return RecordedDocument(
        job=one.job,
        change=change_document(one.change),
        days=one.days,
        launches=len(levels),
        value=scale.value(median(levels)),
    )


def _levels(metric: MetricRef, made: Sequence[Launch]) -> list[float]:
    scale = Scale.of(metric.metric)
    return [scale.level(launch.attempt.values(metric)) for launch in made if launch.attempt is not None]


def _value(line: threshold.Line, told: threshold.Told, scale: Scale, levels: Sequence[float]) -> float | None:
    """The level of the change, as far from the line as is told; the median of its launches before that."""
    if math.isnan(told.over):
        return scale.value(median(levels)) if levels else None
    value = scale.value(line.at + told.over)
    return max(0.0, value) if scale.absolute else value


def _guard(
    plan: CheckPlan, guard: MetricRef, told: threshold.Told, made: Sequence[Launch]
) -> GuardLevelDocument:
    line, scale = plan.guard_line(guard), Scale.of(guard.metric)
    assert line is not None
    return GuardLevelDocument(
        name=str(guard),
        display=metric_document(guard).display,
        unit=guard.metric.unit,
        word=told.word,
        value=_value(line, told, scale, _levels(guard, made)),
    )


def _sentences(
    plan: CheckPlan,
    cell: Cell,
    made: Sequence[Launch],
    seen: Sequence[Launch],
    told: threshold.Told,
    guards: Sequence[tuple[MetricRef, threshold.Told]],
) -> Iterator[str]:
    scale, unit = Scale.of(plan.ref.metric), plan.ref.metric.unit
    display = metric_document(plan.ref).display
    if math.isnan(told.over):
        yield f"{plan.change.short}: nothing is told before {threshold.STEP} launches."
        return
    value = with_unit(_value(plan.line, told, scale, _levels(plan.ref, made)), unit)
    room = scale.worse_by(plan.fail_over)
    effect, *ends = (scale.effect(x + room) for x in (told.over, told.low, told.high))
    low, high = sorted(ends)
    span = f"{percent(effect)} (95 % interval {percent(low)} to {percent(high)})"
    if plan.how == "baseline":
        base = plan.recorded[0]
        says = {
            "beyond": f"worse by more than {percent(plan.fail_over, False)}",
            "within": f"not worse by more than {percent(plan.fail_over, False)}",
            "inconclusive": f"worse by more than {percent(plan.fail_over, False)} or not: it is not told yet",
        }[told.word]
        yield (
            f"{plan.change.short} against the baseline {base.change.short} ({len(base.attempts)} launches of "
            f"{base.days}, job {base.job}): {display} is {says}, {span}."
        )
        yield (
            "The machine as it was then cannot be measured again: what drifted since is part of this "
            "difference; --against REV launches both in turn."
        )
        other = dependencies_differ(base, plan.setting)
        if other:
            yield f"{other[0].upper()}{other[1:]}: they are part of this difference too."
        yield from _of_guards(cell, told, guards)
    else:
        side = {"beyond": "on the bad side", "within": "on the good side", "inconclusive": "on neither side"}
        yield (
            f"{plan.change.short}: {display} is {value}, {span} against the line at "
            f"{with_unit(scale.value(plan.line.at), unit)} between {_ends(plan)}: {side[told.word]} of it."
        )
    if told.word == "inconclusive":
        yield _cost(told, seen)
    count = sum(launch.end == "finished" for launch in seen)
    yield f"{count} launches, {minutes(sum(launch.minutes for launch in seen))}."


def _ends(plan: CheckPlan) -> str:
    unit = plan.ref.metric.unit
    if plan.values is not None:
        return f"{with_unit(plan.values[0], unit)} and {with_unit(plan.values[1], unit)}"
    return " and ".join(
        f"{word} {one.change.short} at {with_unit(recorded_document(one, plan.ref).value, unit)}"
        for word, one in zip(("good", "bad"), plan.recorded, strict=True)
    )


def _of_guards(
    cell: Cell, told: threshold.Told, guards: Sequence[tuple[MetricRef, threshold.Told]]
) -> Iterator[str]:
    words = {str(guard): one.word for guard, one in guards}
    for guard in watched(cell):
        word = words.get(str(guard))
        display = metric_document(guard).display
        if word is None:
            yield f"Guard {guard} is not in the baseline or was not reported: it guards nothing."
        elif word == "beyond":
            yield f"Guard {display} moved for the worse: that decides."
        elif word == "inconclusive" and told.word == "within":
            yield f"Guard {display} is not told yet: it neither backs nor breaks this."


def _cost(told: threshold.Told, seen: Sequence[Launch]) -> str:
    if told.needed is None:
        return "No number of launches would settle it against so few recorded ones: record more of them."
    each = [launch.minutes for launch in seen if launch.end == "finished"]
    more = max(threshold.STEP, told.needed - told.launches)
    cost = f", {minutes(more * median(each))}" if each else ""
    return f"About {more} further launches would settle it{cost}."


def _next(plan: CheckPlan, job: Job, word: CheckWord, ended: bool) -> str:
    if not ended:
        return f"perfbisect resume {job.id}"
    if word == "inconclusive":
        launches = str(2 * plan.launches)
        return again(plan.setting, "--launches", launches) or f"perfbisect check ... --launches {launches}"
    if word == "failed" and plan.how == "baseline":
        ends = ("--good", plan.recorded[0].change.short, "--bad", plan.change.short)
        return following(plan.setting, "bisect", plan.cell, plan.metric, *ends)
    return f"perfbisect report {job.id}"
