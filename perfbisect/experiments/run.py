"""``perfbisect run``: launches of one change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import ClassVar, Final, Literal

from pydantic import Field

from perfbisect.common.quantities import with_unit
from perfbisect.engine.experiment import Experiment, JobStatus
from perfbisect.errors import UsageError
from perfbisect.experiments.measure import (
    ChangePlan,
    MeasurementResult,
    MeasurementRule,
    Measurements,
    attempts_of,
    metric_fields,
)
from perfbisect.jobs.documents import NamedMetric
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import JournalEvent
from perfbisect.jobs.plans import require_plan
from perfbisect.jobs.replay import reported_value, spread
from perfbisect.model.attempt import key
from perfbisect.model.change import Change
from perfbisect.model.metric import parse_metric
from perfbisect.report.document import Report
from perfbisect.report.plots import LaunchGroup, launches_plot
from perfbisect.report.template import render_report


class RunPlan(ChangePlan):
    """``perfbisect run``: launches of one change."""

    noun: ClassVar[str] = "run"
    verb: Literal["run"] = "run"
    per_look: ClassVar[int] = 1


class RunMetric(NamedMetric):
    """One metric over the launches: the value of each."""

    median: float
    low: float
    high: float
    launches: tuple[float, ...]
    within: float | None
    """Robust coefficient of variation over a run's requests, median over runs; None without requests."""


class ChangeResult(MeasurementResult):
    """What ``perfbisect run`` measured of one change."""

    shown: ClassVar[Mapping[str, int]] = {"launches": -8}
    schema_: Literal["perfbisect.run/5"] = Field(default="perfbisect.run/5", alias="schema")
    change: Change
    metrics: tuple[RunMetric, ...]

    @property
    def headline(self) -> RunMetric | None:
        """The metric of the job; None before it was measured."""
        return next((row for row in self.metrics if row.display == self.metric.display), None)

    def report(self) -> Report:
        level = self.headline.median if self.headline else None
        group = LaunchGroup(self.change.short, "end", "circle", self.launches, level)
        plot = launches_plot([group], self.metric)
        return render_report("experiments/templates/run.md.jinja", {"r": self}, {"launches": plot})


def read_run(job: Job, events: Sequence[JournalEvent]) -> ChangeResult:
    """What was measured so far; a UsageError says why the journal holds no run."""
    plan = require_plan(job, events, RunPlan)
    found = Measurements(job, events, plan)
    attempts = attempts_of(found.measured, 0)
    reported = (
        *(n for a in attempts for r in a.runs for n in sorted(r.values)),
        *(n for a in attempts for n in a.reported),
    )
    names = dict.fromkeys([key(plan.ref), *reported])
    metrics: list[RunMetric] = []
    for name in names:
        try:
            metric = parse_metric(name)
        except UsageError:
            continue
        values = [v for v in (reported_value(a, metric) for a in attempts) if v is not None]
        if not values:
            continue
        within = [s for s in (spread(a, metric) for a in attempts) if s is not None]
        metrics.append(
            RunMetric(
                **metric_fields(metric) | {"name": name},
                median=median(values),
                low=min(values),
                high=max(values),
                launches=tuple(values),
                within=median(within) if within and metric.statistic in ("", "median") else None,
            )
        )
    return ChangeResult(
        **found.fields("measured"),
        next=f"perfbisect {'report' if found.finished else 'resume'} {job.id}",
        change=plan.change,
        metrics=tuple(metrics),
    )


def _status(result: ChangeResult) -> JobStatus:
    row, metric = result.headline, result.metric
    return result.status(f"{metric.name} {with_unit(row.median, metric.unit)}" if row else "")


RULE: Final[MeasurementRule[RunPlan]] = MeasurementRule()
RUN: Final = Experiment(
    plan=RunPlan,
    result=read_run,
    status=_status,
    report=ChangeResult.report,
    client_change=lambda plan: plan.change,
    policy=lambda _job, plan, _tools: RULE.policy(plan),
)
