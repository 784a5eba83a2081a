"""Results of comparisons and checks as documents, from their journals alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

from perfbisect.compare.documents import (
    CheckDocument,
    CheckWord,
    CompareDocument,
    GuardLevelDocument,
    recorded_document,
    side_document,
)
from perfbisect.compare.launches import attempts_of, in_turn, observations
from perfbisect.compare.metrics import compare_metrics, has_failed_guard
from perfbisect.compare.plan import CheckPlan, ComparePlan, served_cells
from perfbisect.compare.summary import (
    check_summary,
    compare_summary,
    limit_summary,
    next_of_check,
    next_of_comparison,
)
from perfbisect.jobs.commands import commands_document
from perfbisect.jobs.documents import (
    cell_document,
    change_document,
    launch_document,
    metric_document,
    minutes_document,
    versions,
)
from perfbisect.jobs.folders import Job, finished
from perfbisect.jobs.journal import JournalEvent
from perfbisect.jobs.measurement import guard_metrics
from perfbisect.jobs.plans import plan_cell, require_plan
from perfbisect.jobs.replay import LaunchRecord, launches, minutes_saved
from perfbisect.model.cell import Cell
from perfbisect.model.metric import MetricRef, parse_metric
from perfbisect.stats import ab_test, threshold
from perfbisect.stats.two_sample import Scale

_CHECK_WORDS: dict[str, CheckWord] = {
    "beyond": "failed",
    "within": "passed",
    "refuted": "failed",
    "holds": "passed",
}
"""Verdict on a threshold or on a claim -> verdict of a check; others are inconclusive."""


def guards_of(plan: ComparePlan, cell: Cell) -> tuple[MetricRef, ...]:
    """The guards of a comparison, each once: the cell's, its family's and the claim's."""
    return tuple(dict.fromkeys((*guard_metrics(cell), *map(parse_metric, plan.watch))))


def compare_document(job: Job, events: Sequence[JournalEvent]) -> CompareDocument:
    """The document of a comparison. :raises UsageError: the journal holds none that can be read."""
    plan = require_plan(job, events, ComparePlan)
    seen, cells = launches(events), served_cells(plan)
    cell, measured, ended = cells[0], in_turn(seen), finished(events)
    verdict = ab_test.judge_blocks(plan.question(), observations(measured, plan.ref))
    guards = guards_of(plan, cell)
    rows = tuple(compare_metrics(plan, measured, verdict, {str(guard) for guard in guards}))
    guard_failed = has_failed_guard(rows)
    unreported = {str(guard) for guard in guards} - {row.name for row in rows}
    expected = plan.expected
    claim = expected.settles(verdict.low, verdict.high) if expected else None
    if claim is not None and guard_failed:
        claim = "refuted"
    elif claim == "holds" and unreported and plan.max_regression is None:
        claim = "inconclusive"
    return CompareDocument(
        job=job.id,
        finished=ended,
        verdict="regression" if guard_failed else verdict.word,
        headline=verdict.word,
        expected=plan.expect,
        claim=claim,
        limit=plan.max_regression,
        summary=tuple(compare_summary(plan, verdict, rows, guards, seen, claim)),
        next=next_of_comparison(plan, verdict, job, ended, claim),
        effect=_number(verdict.effect),
        low=_number(verdict.low),
        high=_number(verdict.high),
        smallest_effect=plan.question().min_effect,
        launches_a_side=verdict.launches // 2,
        needed_blocks=verdict.needed,
        a=side_document(plan.a),
        b=side_document(plan.b),
        metric=metric_document(plan.ref),
        metrics=rows,
        cell=cell_document(cell, plan.ref),
        repository=plan.setting.repository,
        environment=plan.setting.environment,
        client=plan.setting.instrument,
        launches=tuple(launch_document(x, plan.sides[x.position].change, plan.ref) for x in seen),
        minutes=minutes_document(seen, plan.budget, minutes_saved(events, seen)),
        reproduce=tuple(
            commands_document(served, plan.setting, side.change, attempts[-1] if attempts else None)
            for served, side, attempts in zip(
                cells, plan.sides, (attempts_of(seen, "a"), attempts_of(seen, "b")), strict=True
            )
        ),
        versions=versions(plan.setting, seen),
        notes=plan.notes,
        folder=str(job.path),
    )


def check_of_comparison(document: CompareDocument) -> CheckDocument:
    """A comparison under a limit as the check that asked for it."""
    limit, row = document.limit or 0.0, next((x for x in document.metrics if x.headline), None)
    line = None
    if row is not None:
        worse = limit if document.metric.direction == "lower" else -limit
        line = row.left + worse if row.absolute else row.left * (1 + worse)
    return CheckDocument(
        job=document.job,
        finished=document.finished,
        verdict=_CHECK_WORDS.get(str(document.claim), "inconclusive"),
        how="rev",
        limit=limit,
        summary=(*limit_summary(document), *document.summary),
        next=document.next,
        effect=document.effect,
        low=document.low,
        high=document.high,
        value=row.right if row else None,
        line=line,
        change=document.b.change,
        metric=document.metric,
        cell=document.cell,
        minutes=document.minutes,
        notes=document.notes,
        folder=document.folder,
        comparison=document,
    )


def judge_check(plan: CheckPlan, measured: Sequence[LaunchRecord]) -> threshold.ThresholdVerdict:
    """The verdict on the metric. :raises KeyError: a launch does not report it."""
    return threshold.judge_threshold(plan.threshold, _levels(plan.ref, measured), plan.launches)


def judge_check_guards(
    plan: CheckPlan, cell: Cell, measured: Sequence[LaunchRecord]
) -> Iterator[tuple[MetricRef, threshold.ThresholdVerdict]]:
    """The verdict on each guard, where a baseline has it and every launch reports it.

    One that was the same in every launch, then and now, did not move, however few they are.
    """
    if plan.how != "baseline":
        return
    for guard in guard_metrics(cell):
        try:
            line, now = plan.guard_threshold(guard), _levels(guard, measured)
            if line is None:
                continue
            verdict = threshold.judge_threshold(line, now, plan.launches)
            before = plan.recorded[0].values(guard)
            after = [v for x in measured if x.attempt is not None for v in x.attempt.values(guard)]
            constant = len({v for values in before for v in values} | set(after)) == 1
            same = constant and not math.isnan(verdict.over)
            yield guard, replace(verdict, word="within") if same else verdict
        except (KeyError, ValueError):
            continue


def check_document(job: Job, events: Sequence[JournalEvent]) -> CheckDocument:
    """The document of a check. :raises UsageError: the journal holds none that can be read."""
    plan = require_plan(job, events, CheckPlan)
    seen, cell, scale, ended = launches(events), plan_cell(plan), Scale.of(plan.ref.metric), finished(events)
    measured = in_turn(seen)
    verdict, guards = judge_check(plan, measured), tuple(judge_check_guards(plan, cell, measured))
    guard_failed = any(judged.word == "beyond" for _, judged in guards)
    room = scale.worse_by(plan.max_regression)
    effect, *ends = (scale.effect(x + room) for x in (verdict.over, verdict.low, verdict.high))
    low, high = sorted(ends)
    word: CheckWord = "failed" if guard_failed else _CHECK_WORDS.get(verdict.word, "inconclusive")
    value = _value(plan.threshold, verdict, scale, _levels(plan.ref, measured))
    attempts = [x.attempt for x in measured if x.attempt is not None]
    return CheckDocument(
        job=job.id,
        finished=ended,
        verdict=word,
        how=plan.how,
        limit=plan.max_regression,
        summary=tuple(check_summary(plan, cell, verdict, (effect, low, high), value, guards, seen)),
        next=next_of_check(plan, job, word, ended),
        effect=_number(effect),
        low=_number(low),
        high=_number(high),
        value=value,
        line=scale.value(plan.threshold.at),
        change=change_document(plan.change),
        metric=metric_document(plan.ref),
        cell=cell_document(cell, plan.ref),
        recorded=tuple(recorded_document(level, plan.ref) for level in plan.recorded),
        guards=tuple(_guard(plan, guard, judged, measured) for guard, judged in guards),
        launches=tuple(launch_document(x, plan.change, plan.ref) for x in seen),
        minutes=minutes_document(seen, plan.budget, minutes_saved(events, seen)),
        reproduce=commands_document(cell, plan.setting, plan.change, attempts[-1] if attempts else None),
        versions=versions(plan.setting, seen),
        notes=plan.notes,
        folder=str(job.path),
    )


def _levels(metric: MetricRef, measured: Sequence[LaunchRecord]) -> list[float]:
    scale = Scale.of(metric.metric)
    return [scale.level(launch.attempt.values(metric)) for launch in measured if launch.attempt is not None]


def _value(
    line: threshold.Threshold, verdict: threshold.ThresholdVerdict, scale: Scale, levels: Sequence[float]
) -> float | None:
    """The level of the change, estimated with the effect; the median of its launches before that."""
    if math.isnan(verdict.over):
        return scale.value(median(levels)) if levels else None
    value = scale.value(line.at + verdict.over)
    return max(0.0, value) if scale.absolute else value


def _guard(
    plan: CheckPlan, guard: MetricRef, verdict: threshold.ThresholdVerdict, measured: Sequence[LaunchRecord]
) -> GuardLevelDocument:
    line, scale = plan.guard_threshold(guard), Scale.of(guard.metric)
    assert line is not None
    return GuardLevelDocument(
        name=str(guard),
        display=metric_document(guard).display,
        unit=guard.metric.unit,
        verdict=verdict.word,
        value=_value(line, verdict, scale, _levels(guard, measured)),
    )


def _number(value: float) -> float | None:
    """A number as a document has it: None where there is none yet."""
    return None if math.isnan(value) else value
