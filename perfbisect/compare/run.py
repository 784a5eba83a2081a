"""``perfbisect run``: launches of one change, measured and written down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from perfbisect.compare.documents import RunDocument, RunMetricDocument
from perfbisect.compare.launches import OneChange, in_turn, measure_launches, require_buildable
from perfbisect.compare.plan import RunPlan
from perfbisect.environments.base import Builder
from perfbisect.errors import UsageError
from perfbisect.jobs.commands import commands_document
from perfbisect.jobs.documents import (
    cell_document,
    change_document,
    launch_document,
    metric_document,
    minutes_document,
    reported_value,
    spread,
    versions,
)
from perfbisect.jobs.events import JobEnded
from perfbisect.jobs.folders import Job, finished
from perfbisect.jobs.journal import JournalEvent
from perfbisect.jobs.measurement import MeasurementConfig, runs_per_launch
from perfbisect.jobs.plans import cell_data, plan_cell, require_plan
from perfbisect.jobs.replay import LaunchRecord, launches, minutes_saved
from perfbisect.jobs.runner import JobContext, LaunchRequest
from perfbisect.model.attempt import Attempt, key
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change
from perfbisect.model.metric import MetricRef, parse_metric


def make_run_plan(
    *,
    cell: Cell,
    change: Change,
    builder: Builder,
    metric: MetricRef,
    setting: MeasurementConfig,
    launches: int,
    runs: int,
    notes: Sequence[str] = (),
) -> RunPlan:
    """The plan of ``perfbisect run``: so many launches with so many runs each.

    :raises UsageError: several runs a launch, of an engine whose caches cannot be emptied between them,
        or an environment that does not fit the change.
    :raises BuildError: the change cannot be built.
    """
    require_buildable(builder, change, change.short, next_step="choose another --env or --at")
    if runs > 1 and runs_per_launch(cell) == 1:
        raise UsageError(
            f"cell {cell.name}: the engine's caches cannot be emptied between runs, so a launch has one run",
            next_step="ask for more launches instead: --launches",
        )
    return RunPlan(
        cell=cell_data(cell),
        digest=cell.digest,
        setting=setting,
        metric=str(metric),
        change=change,
        launches=launches,
        runs=runs,
        notes=tuple(notes),
    )


def run(job: Job, tools: JobContext, *, until: int | None = None) -> RunDocument:
    """Goes on with a run, new or resumed, until all its launches are measured. Hold the job meanwhile.

    ``until``: stop, unfinished, as soon as so many are.

    Raises what :func:`perfbisect.compare.launches.measure_launches` does.
    """

    def count(plan: RunPlan) -> int:
        return plan.launches if until is None else min(until, plan.launches)

    def counted(plan: RunPlan, cell: Cell) -> _Counted:
        return _Counted(plan, cell, most=count(plan))

    def conclude(plan: RunPlan, _: Sequence[LaunchRecord]) -> dict[str, object] | None:
        return {"verdict": "measured"} if count(plan) == plan.launches else None

    document = run_document(job, measure_launches(job, tools, RunPlan, counted, conclude))
    tools.sink(JobEnded(document))
    return document


@dataclass(frozen=True)
class _Counted(OneChange):
    """A number of launches of one change."""

    most: int = 0

    def next(self, seen: Sequence[LaunchRecord]) -> LaunchRequest | str:
        plan, done = self.plan, len(in_turn(seen))
        if done >= self.most:
            return ""
        return LaunchRequest(0, plan.change, "run", plan.runs, f"launch {done + 1} of {plan.launches}")

    def admit(self, attempt: Attempt, seen: Sequence[LaunchRecord]) -> None:
        """Every measurement counts."""


def run_document(job: Job, events: Sequence[JournalEvent]) -> RunDocument:
    """What was measured so far. :raises UsageError: the journal holds no run, or one that cannot be read."""
    plan = require_plan(job, events, RunPlan)
    cell, seen, metric = plan_cell(plan), launches(events), plan.ref
    attempts = [x.attempt for x in seen if x.end == "finished" and x.attempt is not None]
    return RunDocument(
        job=job.id,
        finished=finished(events),
        change=change_document(plan.change),
        cell=cell_document(cell, metric),
        headline=metric_document(metric),
        environment=plan.setting.environment,
        client=plan.setting.instrument,
        metrics=_metrics(attempts, metric),
        launches=tuple(launch_document(x, plan.change, metric) for x in seen),
        minutes=minutes_document(seen, 0.0, minutes_saved(events, seen)),
        reproduce=commands_document(cell, plan.setting, plan.change, attempts[-1] if attempts else None),
        versions=versions(plan.setting, seen),
        notes=plan.notes,
        folder=str(job.path),
    )


def _metrics(attempts: Sequence[Attempt], headline: MetricRef) -> tuple[RunMetricDocument, ...]:
    """The headline first, then every metric that was reported, with its unit."""
    names = dict.fromkeys([key(headline), *(n for a in attempts for r in a.runs for n in sorted(r.values))])
    found = [_metric(attempts, name) for name in names]
    return tuple(document for document in found if document is not None)


def _metric(attempts: Sequence[Attempt], name: str) -> RunMetricDocument | None:
    try:
        metric = parse_metric(name)
    except UsageError:
        return None
    values = [v for v in (reported_value(a, metric) for a in attempts) if v is not None]
    if not values:
        return None
    within = [s for s in (spread(a, metric) for a in attempts) if s is not None]
    return RunMetricDocument(
        name=name,
        display=metric_document(metric).display,
        unit=metric.metric.unit,
        median=median(values),
        low=min(values),
        high=max(values),
        launches=tuple(values),
        within=median(within) if within and metric.statistic in ("", "median") else None,
    )
