"""The result of a job from its journal: the verdict, its guards and the metrics beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Generic, TypeVar

from perfbisect.compare.claims import Settled
from perfbisect.compare.plan import (
    CheckPlan,
    ComparePlan,
    MeasuredLaunch,
    MeasurementPlan,
    MetricVerdict,
    attempts_of,
    combine_claims,
    measured_launches,
    served_cells,
    shared_metrics,
)
from perfbisect.errors import UsageError
from perfbisect.jobs.documents import reported_value
from perfbisect.jobs.folders import Job, finished
from perfbisect.jobs.journal import JournalEvent
from perfbisect.jobs.plans import require_plan
from perfbisect.jobs.replay import LaunchRecord, launches, minutes_saved
from perfbisect.model.attempt import Attempt, key
from perfbisect.model.cell import Cell
from perfbisect.model.metric import MetricRef, parse_metric
from perfbisect.stats.sequential import most_of_none

_LEFT_OUT = (":std", ":p50")
"""Statistics that say nothing of their own: a spread, and the median once more."""

_COUNTED = {
    "failed": ("failed", ("completed", "failed")),
    "spec_decode_acceptance_rate": ("accepted_tokens", ("draft_tokens",)),
}
"""Shares of which a run keeps the counts: the fact that is counted, and those that it is a share of."""

MeasurementPlanT = TypeVar("MeasurementPlanT", bound=MeasurementPlan)


@dataclass(frozen=True)
class JobResult(Generic[MeasurementPlanT]):
    """A run, a check or a comparison, finished or not.

    ``verdicts``: of the metrics that are judged, the headline first. ``metrics``: of a comparison these, the
    guards, then every other metric that both sides report. ``guards``: None for one that was not reported, or
    has no ratio.
    """

    job: Job
    plan: MeasurementPlanT
    finished: bool
    cells: tuple[Cell, ...]
    launches: tuple[LaunchRecord, ...]
    measured: tuple[MeasuredLaunch, ...]
    minutes_saved: float
    verdicts: tuple[MetricVerdict, ...]
    metrics: tuple[MetricVerdict, ...]
    guards: Mapping[MetricRef, MetricVerdict | None]

    @property
    def verdict(self) -> MetricVerdict:
        """That of the headline."""
        return self.verdicts[0]

    @property
    def guard_failed(self) -> bool:
        words = {guard.word for guard in self.guards.values() if guard is not None}
        return not words.isdisjoint(("regression", "beyond"))

    @property
    def claim(self) -> Settled:
        """Whether what was claimed holds; a guard that failed refutes it, one without values holds it up."""
        if self.guard_failed:
            return "refuted"
        plan = self.plan
        claim = combine_claims(map(plan.claim, self.verdicts))
        unguarded = isinstance(plan, ComparePlan) and plan.expect and None in self.guards.values()
        return "inconclusive" if claim == "holds" and unguarded else claim


def read_result(
    job: Job, events: Sequence[JournalEvent], plan_type: type[MeasurementPlanT]
) -> JobResult[MeasurementPlanT]:
    """Read a result; a UsageError says why the journal holds none."""
    plan = require_plan(job, events, plan_type)
    cells, records = served_cells(plan), launches(events)
    measured = measured_launches(records)
    verdicts, guards = plan.judge_all(measured), plan.guards(cells[0])
    if isinstance(plan, ComparePlan):
        metrics = _judge_beside_all(plan, measured, verdicts, guards)
        by_name = {str(row.metric): row for row in metrics}
        judged = {guard: by_name.get(str(guard)) for guard in guards}
    else:
        metrics, judged = (), {guard: _judge_beside(plan, measured, guard, len(guards)) for guard in guards}
    return JobResult(
        job=job,
        plan=plan,
        finished=finished(events),
        cells=cells,
        launches=records,
        measured=measured,
        minutes_saved=minutes_saved(events, records),
        verdicts=verdicts,
        metrics=metrics,
        guards=judged,
    )


def has_open_guard(plan: MeasurementPlan, measured: Sequence[MeasuredLaunch], cell: Cell) -> bool:
    """True if a guard that was reported needs more launches for a verdict."""
    guards = plan.guards(cell)
    verdicts = (_judge_beside(plan, measured, guard, len(guards)) for guard in guards)
    return any(verdict is not None and verdict.word == "inconclusive" for verdict in verdicts)


def has_equal_medians(measured: Sequence[MeasuredLaunch], metric: MetricRef) -> bool:
    """True if the median launch of both sides has one value."""
    sides = [[reported_value(attempt, metric) for attempt in attempts_of(measured, side)] for side in (0, 1)]
    left, right = ([value for value in values if value is not None] for values in sides)
    return bool(left and right) and median(left) == median(right)


def _judge_beside_all(
    plan: ComparePlan,
    measured: Sequence[MeasuredLaunch],
    verdicts: tuple[MetricVerdict, ...],
    guards: Sequence[MetricRef],
) -> tuple[MetricVerdict, ...]:
    """Every metric that both sides report and that has a ratio; none before the first verdict."""
    if math.isnan(verdicts[0].effect):
        return ()
    names, metrics = shared_metrics(measured), list[MetricRef]()
    for name in names:
        try:
            metric = parse_metric(name)
        except UsageError:
            continue
        if not name.endswith(_LEFT_OUT) and metric not in (*plan.refs, *metrics) and key(metric) in names:
            metrics.append(metric)
    metrics.sort(key=lambda metric: metric not in guards)
    beside = (
        _judge_beside(plan, measured, metric, len(guards) if metric in guards else 1) for metric in metrics
    )
    return (*verdicts, *(verdict for verdict in beside if verdict is not None))


def _judge_beside(
    plan: MeasurementPlan, measured: Sequence[MeasuredLaunch], metric: MetricRef, tests: int
) -> MetricVerdict | None:
    """The verdict on a metric beside the headline; None where it was not reported or has no ratio.

    ``tests``: how many share its error, of a guard all guards.

    One that was the same in every run did not move, however few they are: the model would give it the least
    noise that it knows. For a share of which nothing was hit the interval is that of counting.
    """
    try:
        verdict = plan.judge(measured, metric, tests)
    except (KeyError, ValueError):
        return None
    values = {value for launch in measured for value in launch.attempt.values(metric)}
    if isinstance(plan, CheckPlan):
        values |= {value for runs in plan.recorded[0].values(metric) for value in runs}
    if math.isnan(verdict.effect) or len(values) != 1:
        return verdict
    if isinstance(plan, CheckPlan):
        return replace(verdict, word="within")
    (value,) = values
    same = replace(verdict, word="same", effect=0.0, needed=0, a=value, b=value)
    counts = [_pool_counts(metric, attempts_of(measured, side)) for side in (0, 1)]
    (left, of_left), (right, of_right) = (count or (1, 1) for count in counts)
    if left or right:
        return replace(same, note="one value in every run")
    note = f"none of {of_left} in A, none of {of_right} in B"
    return replace(same, low=-most_of_none(of_left), high=most_of_none(of_right), note=note)


def _pool_counts(metric: MetricRef, attempts: Sequence[Attempt]) -> tuple[int, int] | None:
    """Hits, and of how many, over all runs; None where a run keeps no counts of the share."""
    if metric.name not in _COUNTED:
        return None
    hit_name, names = _COUNTED[metric.name]
    hits = total = 0
    for run in (run for attempt in attempts for run in attempt.runs):
        counts: list[Any] = [run.facts.get(name) for name in (hit_name, *names)]
        hit, *parts = counts
        if not all(isinstance(count, int) for count in counts) or not 0 <= hit <= sum(parts):
            return None
        hits, total = hits + hit, total + sum(parts)
    return (hits, total) if total else None
