"""``perfbisect check``: one change against recorded launches, or the middle of two values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import ClassVar, Final, Literal

from pydantic import Field, FiniteFloat

from perfbisect.common.text import line
from perfbisect.engine.experiment import Experiment
from perfbisect.errors import UsageError
from perfbisect.experiments.baseline import RecordedLevel, ReportedLevel, require_enough, require_same_machine
from perfbisect.experiments.claims import Settled, combine_claims
from perfbisect.experiments.measure import (
    CLAIMS,
    OUTCOMES,
    ChangePlan,
    MeasurementRule,
    Measurements,
    MetricResult,
    VerdictResult,
    attempts_of,
    measured_launches,
    metric_result,
)
from perfbisect.experiments.run import ChangeResult, RunPlan
from perfbisect.jobs.commands import follow_up_command, repeat_command
from perfbisect.jobs.documents import Document
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import JournalEvent, read, replaying
from perfbisect.jobs.plans import cell_data, find_plan, guard_metrics, plan_cell, plan_data, require_plan
from perfbisect.jobs.replay import Launch, launches, require_comparable
from perfbisect.model.attempt import Attempt
from perfbisect.model.change import Change
from perfbisect.model.environment import (
    ENVIRONMENT_FACT,
    environment_differences,
    portable_environment,
)
from perfbisect.model.metric import MetricRef
from perfbisect.report.document import Report
from perfbisect.report.plots import LaunchGroup, Level, launches_plot
from perfbisect.report.template import render_report, render_sentences
from perfbisect.stats import ab_test, threshold
from perfbisect.stats.two_sample import Scale


class CheckPlan(ChangePlan):
    """``perfbisect check`` of one change against recorded launches or values.

    ``how``: against a ``baseline`` (``recorded``, or ``reported`` by a client) with the share by which the
    change may be worse, or against the middle of two ``values`` (good, bad).
    """

    noun: ClassVar[str] = "check"
    per_look: ClassVar[int] = threshold.STEP
    verb: Literal["check"] = "check"
    how: Literal["baseline", "values"]
    recorded: tuple[RecordedLevel, ...] = ()
    reported: ReportedLevel | None = None
    values: tuple[float, float] | None = None
    max_regression: float = 0.0
    budget: FiniteFloat

    def limit(self, metric: MetricRef) -> float:
        """The share by which a metric may be worse; of a guard its smallest effect."""
        return self.max_regression if metric in self.refs else metric.metric.smallest_effect

    def threshold(self, metric: MetricRef) -> threshold.Threshold:
        """The level that the change must not exceed; of a guard its smallest effect above the baseline.

        Raises:
            KeyError: the baseline lacks the metric.
            ValueError: the recorded launches are too few, or the bad value is not the worse one.
        """
        scale = Scale.of(metric.metric)
        if self.values is not None:
            good, bad = (scale.level((value,)) for value in self.values)
            if bad <= good:
                raise ValueError("the bad value is not the worse one")
            return threshold.Threshold(0.5 * (good + bad))
        if self.reported is not None:
            level = scale.level((self.reported.values[str(metric)],))
            return threshold.Threshold(level + scale.worse_by(self.limit(metric)))
        recorded = [scale.level(values) for values in self.recorded[0].values(metric)]
        return threshold.threshold_above(recorded, scale.worse_by(self.limit(metric)))


def _admit(plan: CheckPlan, attempt: Attempt, records: Sequence[Launch]) -> None:
    for ref in plan.refs:
        require_comparable(attempt, records, ref, "measure all of a check")
    here = attempt.provenance
    for level in plan.recorded:
        # Known only now: the client's sources are digested when a launch uses them.
        client = (here.client_digest, here.client_era)
        require_same_machine(level, machine_class=here.machine_class, client=client)


def _judge(plan: CheckPlan, measured: Sequence[Launch], metric: MetricRef, tests: int) -> MetricResult:
    scale, limit, is_judged = Scale.of(metric.metric), plan.threshold(metric), metric in plan.refs
    levels = [scale.level(launch.measurement.values(metric)) for launch in measured]
    if is_judged:
        error, noise = threshold.ERROR / tests, plan.known_noise(metric, measured)
        judged = threshold.judge_threshold(limit, levels, plan.launches, error=error, noise=noise)
    else:
        # A guard that fails is a verdict by itself: it gets the small error of a false difference.
        beyond = ab_test.DIFFERENT / tests
        judged = threshold.judge_threshold(limit, levels, plan.launches, beyond_error=beyond)
    # The test measures the distance from the threshold; readers see the effect against the baseline.
    room = scale.worse_by(plan.limit(metric))
    effect, *ends = (scale.effect(over + room) for over in (judged.over, judged.low, judged.high))
    if not math.isnan(judged.over):
        value = scale.value(limit.at + judged.over)
        # The estimate of a level may be below zero; a share may not.
        value = max(0.0, value) if scale.absolute else value
    else:
        value = scale.value(median(levels)) if levels else math.nan
    return metric_result(
        plan,
        metric,
        verdict=judged.word,
        claim=CLAIMS[judged.word] if is_judged else None,
        right=value,
        line=scale.value(limit.at),
        effect=effect,
        low=min(ends),
        high=max(ends),
        launches=len(levels),
        needed=judged.needed,
    )


def _judge_unvaried(plan: CheckPlan, measured: Sequence[Launch], row: MetricResult) -> MetricResult:
    """One that was the same in every run, then and now, did not move, however few they are."""
    values = {value for launch in measured for value in launch.measurement.values(row.ref)}
    # Only guards get here, and only a check against recorded launches has guards: there is a level.
    values |= {value for runs in plan.recorded[0].values(row.ref) for value in runs}
    return row.model_copy(update={"verdict": "within"}) if len(values) == 1 else row


RULE: Final[MeasurementRule[CheckPlan]] = MeasurementRule(
    judge=_judge,
    judge_unvaried=_judge_unvaried,
    guards=lambda plan: guard_metrics(plan.cells[0]) if plan.recorded else (),
    reason=lambda plan, count: f"launch {count + 1} of {plan.max_launches} at most",
    admit=_admit,
)


class RecordedDocument(Document):
    """A level that was measured before: whose, when, in which job, with how many launches.

    ``dependencies``: the constraints or the day of its dependencies.
    """

    job: str
    change: Change
    days: str
    launches: int
    value: float | None
    dependencies: str


class CheckResult(VerdictResult):
    """How a check ended, or how far it is: ``passed``, ``failed`` or ``inconclusive``.

    Effects are those of the change against its reference: B / A - 1, of shares B - A; of ``values`` against
    the threshold between them. ``limit``: the share by which it may be worse.
    """

    schema_: Literal["perfbisect.check/7"] = Field(default="perfbisect.check/7", alias="schema")
    how: Literal["rev", "baseline", "values"]
    limit: float
    change: Change
    recorded: tuple[RecordedDocument, ...] = ()
    reported: ReportedLevel | None = None

    def report(self) -> Report:
        headline = self.headline
        named = [(f"recorded {level.change.short}", level.value) for level in self.recorded]
        named += [("reported", self.reported.values[headline.name])] if self.reported else []
        levels = [
            Level(value, "quiet", dash="dash", label=line(label))
            for label, value in (("threshold", headline.line), *named)
            if value is not None
        ]
        group = LaunchGroup(self.change.short, "search", "square", self.launches, headline.right)
        plot = launches_plot([group], self.metric, levels)
        return render_report("experiments/templates/check.md.jinja", {"r": self}, {"launches": plot})


def recorded_document(level: RecordedLevel, metric: MetricRef) -> RecordedDocument:
    """A recorded level as a result names it; its value is the median of its launches."""
    scale = Scale.of(metric.metric)
    return RecordedDocument(
        job=level.job,
        change=level.change,
        days=level.days,
        launches=len(level.attempts),
        value=scale.value(median(scale.level(values) for values in level.values(metric))),
        dependencies=level.constraints or level.exclude_newer,
    )


def read_check(job: Job, events: Sequence[JournalEvent]) -> CheckResult:
    """How a check ended, or how far it is; a UsageError says why the journal holds none."""
    plan = require_plan(job, events, CheckPlan)
    found = Measurements(job, events, plan)
    judged, guards = RULE.judge_all(plan, found.measured), RULE.judge_guards(plan, found.measured)
    failed = any(row is not None and row.verdict == "beyond" for row in guards.values())
    claim = combine_claims((row.claim for row in judged), is_refuted=failed)
    result = CheckResult(
        **found.fields(OUTCOMES[claim]),
        next=_next_command(plan, job, judged, claim, is_finished=found.finished),
        metrics=(*judged, *(row for row in guards.values() if row is not None)),
        unchecked=tuple(str(guard) for guard, row in guards.items() if row is None),
        how=plan.how,
        limit=plan.max_regression,
        change=plan.change,
        recorded=tuple(recorded_document(level, plan.ref) for level in plan.recorded),
        environment_differences=environment_differences(
            [attempt for level in plan.recorded for attempt in level.attempts],
            attempts_of(found.measured, 0),
        ),
        reported=plan.reported,
    )
    return result.model_copy(update={"summary": _sentences(plan, result)})


def _next_command(
    plan: CheckPlan, job: Job, judged: Sequence[MetricResult], claim: Settled, *, is_finished: bool
) -> str:
    """The command that comes next."""
    if not is_finished:
        return f"perfbisect resume {job.id}"
    if claim == "inconclusive":
        launches = str(2 * plan.launches)
        repeated = repeat_command(plan.setting, "launches", launches)
        return repeated or f"perfbisect check ... --launches {launches}"
    if not plan.recorded or claim != "refuted":
        return f"perfbisect report {job.id}"
    metric = next((row for row in judged if row.claim == "refuted"), judged[0]).name
    ends = {"good": plan.recorded[0].change.short, "bad": plan.change.short}
    return follow_up_command(plan.setting, "bisect", plan.cell, (metric,), **ends)


def _sentences(plan: CheckPlan, result: CheckResult) -> tuple[str, ...]:
    is_good = all(row.claim == "holds" for row in result.judged)
    rows = {row.name: row for row in result.guards}
    values = {
        "r": result,
        "ends": plan.values,
        "guards": [(str(guard), rows.get(str(guard))) for guard in RULE.guards(plan)],
        "open_guards": [row.name for row in result.guards if is_good and row.verdict == "inconclusive"],
        "needed": [row.needed for row in result.judged if row.verdict == "inconclusive"],
        "per_look": threshold.STEP,
        "here": plan.setting.constraints or plan.setting.exclude_newer,
    }
    return render_sentences("experiments/templates/check.summary.jinja", values)


CHECK: Final = Experiment(
    plan=CheckPlan,
    result=read_check,
    status=lambda result: result.status(result.effects),
    report=CheckResult.report,
    client_change=lambda plan: plan.change,
    policy=lambda _job, plan, _tools: RULE.policy(plan),
)


def level_of_job(job: Job) -> RecordedLevel:
    """The level that a ``run`` or a ``check`` measured; a UsageError says why there is none."""
    events = read(job.journal).events
    plan = find_plan(events, RunPlan) or find_plan(events, CheckPlan)
    if plan is None:
        verb = plan_data(events).get("verb")
        raise UsageError(
            f"job {job.id} is a {verb}: it measured several changes, and a baseline is of one",
            next_step="name a job of perfbisect run or check, or a file of --save-baseline",
        )
    with replaying(job.journal):
        attempts = attempts_of(measured_launches(launches(events)), 0)
        level = RecordedLevel(
            job=job.id,
            change=plan.change,
            cell=cell_data(plan_cell(plan)),
            environment=plan.setting.environment,
            exclude_newer=plan.setting.exclude_newer,
            constraints=plan.setting.constraints,
            attempts=tuple(
                replace(
                    attempt,
                    # Facts hold command lines, readings and paths of one machine: a file that is handed on
                    # must not have them.
                    provenance=replace(
                        attempt.provenance,
                        facts={ENVIRONMENT_FACT: portable_environment(attempt.provenance)},
                    ),
                    runs=tuple(replace(run, facts={}, raw="") for run in attempt.runs),
                    folder="",
                )
                for attempt in attempts
            ),
        )
    return require_enough(level, f"job {job.id}")


class BaselineResult(Document):
    """``perfbisect check --save-baseline``: the run that was made, and the ``file`` that keeps its level."""

    schema_: Literal["perfbisect.check-baseline/3"] = Field(
        default="perfbisect.check-baseline/3", alias="schema"
    )
    file: str
    recorded: RecordedDocument
    run: ChangeResult

    def report(self) -> Report:
        return render_report("experiments/templates/baseline.md.jinja", {"r": self})

    def brief(self) -> BaselineResult:
        return self.model_copy(update={"run": self.run.brief()})
